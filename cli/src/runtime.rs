//! Runtimes that take the memory of their objects from the kernel, or keep it in arenas of their own: malloc,
//! and so the heap and its profiles, do not have these objects. A line says so, so that a user does not look
//! for them.

use std::path::Path;

use crate::program;

/// A dynamic symbol of a runtime's program, and what is true of it.
const KNOWN: [(&[u8], &str); 6] = [
    (b"JLI_Launch", "starts a JVM, whose objects are not malloc's: a profile has those of native code alone"),
    (b"luaJIT_setmode", "is LuaJIT, whose objects are not malloc's: a profile has those of C code alone"),
    (b"_emalloc", "is PHP, whose objects lie in chunks of its own: USE_ZEND_ALLOC=0 takes them from malloc"),
    (b"napi_create_object", "has V8, whose objects are not malloc's: a profile has those of C++ code alone"),
    (
        b"Py_BytesMain",
        "is CPython, whose objects of up to 512 bytes lie in arenas of its own: PYTHONMALLOC=malloc takes \
         them from malloc",
    ),
    (b"_cgo_topofstack", GO),
];
const GO: &str = "is written in Go, whose objects are not malloc's: a profile has those of C code alone";

/// The line for a program, or for a script's interpreter; `None` if its objects are malloc's as far as is
/// known.
pub fn note(program: &Path) -> Option<String> {
    let program = program::binary_of(program)?;
    let symbols = program::dynamic_symbols(&program);
    let has = |wanted: &[u8]| symbols.iter().any(|(name, _)| name == wanted);
    let known = KNOWN.iter().find(|(symbol, _)| has(symbol)).map(|&(_, what)| what);
    let what = known.or_else(|| program::is_go(&program).then_some(GO))?;
    Some(format!("{} {what}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn runtimes_with_objects_of_their_own_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let built = |name: &str, text: &str| {
            let (source, program) = (folder.path().join("source.c"), folder.path().join(name));
            std::fs::write(&source, text).unwrap();
            let mut cc = Command::new("cc");
            cc.args(["-rdynamic", "-o"]).arg(&program).arg(&source);
            assert!(cc.status().unwrap().success());
            program
        };
        assert_eq!(note(&built("plain", "int main(void) { return 0; }")), None);
        for (symbol, wanted) in [
            ("JLI_Launch", "a JVM"),
            ("luaJIT_setmode", "LuaJIT"),
            ("_emalloc", "USE_ZEND_ALLOC=0"),
            ("Py_BytesMain", "PYTHONMALLOC=malloc"),
            ("napi_create_object", "V8"),
        ] {
            let program = built(symbol, &format!("void {symbol}(void) {{}}\nint main(void) {{ return 0; }}"));
            let line = note(&program).unwrap();
            assert!(line.contains(wanted), "{line}");
            let script = folder.path().join("script");
            std::fs::write(&script, format!("#!{}\n", program.display())).unwrap();
            assert_eq!(note(&script), Some(line));
        }
    }
}
