//! The names that a model knows, which `train/` writes into its file: with them the functions of any build
//! get the numbers that the model reads. The rules are those of `train/data/tokens.py`,
//! `train/model/stacks.py` and `train/model/table.py`, name by name.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::io::Read;

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::ZlibDecoder;
use lifetime_model::file::STEP_END;
use serde::de::DeserializeOwned;

use crate::code::symbols::{ANONYMOUS, INLINED_SEPARATOR};

/// The number of a token that is not in the vocabulary, and of a function that is not in a table.
const UNKNOWN: u16 = 0;
/// The number of `@`, which ends a frame.
const FRAME_END: u16 = 1;
/// Tokens that have no text: the two above.
const RESERVED: usize = 2;
/// Tokens of one frame that count.
const FRAME_TOKENS: usize = 64;
/// A model file holds some MiB of names; `mayfly train` never writes more than this.
const MOST_BYTES: u64 = 1 << 30;

/// The value in a compressed section of the file.
///
/// # Errors
/// The section is damaged.
pub(crate) fn unpacked<T: DeserializeOwned>(section: &[u8]) -> Result<T> {
    let mut text = Vec::new();
    let whole = ZlibDecoder::new(section).take(MOST_BYTES).read_to_end(&mut text);
    whole.context("its names are damaged")?;
    serde_json::from_slice(&text).context("its names are damaged")
}

enum Steps {
    /// A step a function, in a table.
    Functions,
    /// A step a token.
    Tokens,
    /// A step a frame.
    Frames,
}

/// From a frame's name to its entries in the model's file.
pub struct Names {
    steps: Steps,
    numbers: HashMap<String, u16>,
    /// Functions of a table without their arguments, where the name is unique.
    bare: HashMap<String, u16>,
    /// Rows of the frames that training saw, by their whole text, and by their text without build-specific
    /// parts.
    frames: HashMap<String, u16>,
    plain_frames: HashMap<String, u16>,
}

impl Names {
    /// Reads the section of names of a file with `rows` rows, or functions.
    ///
    /// # Errors
    /// The section is damaged, or of an unknown kind.
    pub fn read(section: &[u8], rows: usize) -> Result<Self> {
        let (encoder, tokens, frames): (String, Vec<String>, Vec<String>) = unpacked(section)?;
        ensure!(tokens.len() + frames.len() <= rows.min(STEP_END.into()), "its names are more than its rows");
        let steps = match &*encoder {
            "table" => Steps::Functions,
            "lstm-tokens" => Steps::Tokens,
            "lstm-frames" => Steps::Frames,
            _ => bail!("its encoder {encoder:?} is not known here"),
        };
        let first = if matches!(steps, Steps::Functions) { 1 } else { RESERVED };
        ensure!(tokens.len() >= first, "its names are damaged");
        let known = tokens.len();
        let numbered = |(number, name): (usize, String)| (name, number as u16);
        let numbers: HashMap<String, u16> =
            tokens.into_iter().enumerate().skip(first).map(numbered).collect();
        let mut bare: HashMap<String, Option<u16>> = HashMap::new();
        for (name, &number) in &numbers {
            let one = bare.entry(without_arguments(name).to_owned());
            one.and_modify(|of_several| *of_several = None).or_insert(Some(number));
        }
        let bare = bare.into_iter().filter_map(|(name, number)| Some((name, number?))).collect();
        let frames = frames.into_iter().enumerate().map(|(number, name)| (name, (known + number) as u16));
        let frames: Vec<(String, u16)> = frames.collect();
        let mut plain_frames = HashMap::new();
        for (name, row) in &frames {
            plain_frames.entry(plain(name).into_owned()).or_insert(*row);
        }
        Ok(Self { steps, numbers, bare, frames: frames.into_iter().collect(), plain_frames })
    }

    /// The entries of a frame in the file's steps; the last of each step is marked.
    pub fn entries(&self, frame: &str) -> Vec<u16> {
        let number = |name: &str| self.numbers.get(name).copied().unwrap_or(UNKNOWN);
        match self.steps {
            Steps::Functions => {
                // A function whose arguments changed is still the same one.
                let number = |name: &str| {
                    let found = self.numbers.get(name).or_else(|| self.bare.get(without_arguments(name)));
                    found.copied().unwrap_or(UNKNOWN)
                };
                let known: Vec<u16> = functions_of(frame).map(|name| number(&name) | STEP_END).collect();
                // All unknown functions are alike.
                if known.iter().all(|&entry| entry == UNKNOWN | STEP_END) {
                    vec![UNKNOWN | STEP_END]
                } else {
                    known
                }
            }
            Steps::Tokens => {
                let text = plain(frame);
                let tokens = tokens(&text).take(FRAME_TOKENS).map(number);
                tokens.chain([FRAME_END]).map(|token| token | STEP_END).collect()
            }
            Steps::Frames => {
                let (text, mut met) = (plain(frame), HashSet::new());
                if let Some(&own) = self.frames.get(frame).or_else(|| self.plain_frames.get(&*text)) {
                    return vec![own | STEP_END];
                }
                let mut rows: Vec<u16> =
                    tokens(&text).map(number).filter(|&token| met.insert(token)).take(FRAME_TOKENS).collect();
                if rows.is_empty() {
                    rows.push(UNKNOWN);
                }
                *rows.last_mut().expect("one at least") |= STEP_END;
                rows
            }
        }
    }
}

/// The functions of a frame, innermost first, without build-specific parts.
pub fn functions_of(frame: &str) -> impl Iterator<Item = Cow<'_, str>> {
    frame.split(INLINED_SEPARATOR).map(plain)
}

/// Whether this byte may be part of a token; every byte beyond ASCII may.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// The words of a name, a destructor's with its `~`.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at;
            at += usize::from(bytes[at] == b'~');
            let word = at;
            at += bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
            if at > word {
                return Some(&text[start..at]);
            }
            at = start + 1; // a character that is in no token, and so is ASCII
        }
        None
    })
}

/// A name without build-specific parts: rustc's hash, and the numbers of GCC's clones. Empty for code without
/// a name.
fn plain(name: &str) -> Cow<'_, str> {
    if name == ANONYMOUS {
        return Cow::Borrowed("");
    }
    let bytes = name.as_bytes();
    let (mut kept, mut copied, mut at) = (String::new(), 0, 0);
    while at < bytes.len() {
        let length = specific_to_a_build(&bytes[at..]);
        if length == 0 {
            at += 1;
            continue;
        }
        kept.push_str(&name[copied..at]);
        at += length;
        copied = at;
    }
    if copied == 0 {
        return Cow::Borrowed(name);
    }
    kept.push_str(&name[copied..]);
    Cow::Owned(kept)
}

/// A C++ function's name without its arguments, which a revision may change.
pub fn without_arguments(function: &str) -> &str {
    let Some(end) = function.rfind(')') else { return function };
    if function[end..].contains(['>', ':']) {
        return function;
    }
    let mut depth = 0;
    for (at, byte) in function.as_bytes()[..=end].iter().enumerate().rev() {
        depth += i32::from(*byte == b')') - i32::from(*byte == b'(');
        if depth == 0 {
            return if at == 0 { function } else { &function[..at] };
        }
    }
    function
}

/// The number of build-specific bytes at the beginning of the text.
fn specific_to_a_build(text: &[u8]) -> usize {
    const HASH: &[u8] = b"::h";
    const HASH_DIGITS: usize = 16;
    const CLONE: &[u8] = b" [clone ";
    const SUFFIXES: [&[u8]; 6] = [b".isra", b".constprop", b".part", b".cold", b".lto_priv", b".llvm"];
    if let Some(hash) = text.strip_prefix(HASH).and_then(|rest| rest.get(..HASH_DIGITS)) {
        let end = HASH.len() + HASH_DIGITS;
        let digits = hash.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        if digits && text.get(end).is_none_or(|&next| !is_word(next)) {
            return end;
        }
    }
    if let Some(rest) = text.strip_prefix(CLONE) {
        return rest.iter().position(|&byte| byte == b']').map_or(0, |end| CLONE.len() + end + 1);
    }
    let Some(suffix) = SUFFIXES.iter().find(|suffix| text.starts_with(suffix)) else { return 0 };
    let mut end = suffix.len();
    while text.get(end) == Some(&b'.') {
        let digits = text[end + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            break;
        }
        end += 1 + digits;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn section(encoder: &str, tokens: &[&str], frames: &[&str]) -> Vec<u8> {
        let text = serde_json::to_vec(&(encoder, tokens, frames)).unwrap();
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&text).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn build_specific_parts_are_left_out() {
        for (name, wanted) in [
            ("f", "f"),
            ("a::b::h0123456789abcdef", "a::b"),
            ("a::h0123456789abcdef0", "a::h0123456789abcdef0"),
            ("a::h0123456789abcdef;b", "a;b"),
            ("a::h0123456789abcdeg", "a::h0123456789abcdeg"),
            ("f.isra.0.constprop.12", "f"),
            ("f.part.0.x", "f.x"),
            ("f(int) [clone .cold]", "f(int)"),
            ("f [clone ", "f [clone "),
            ("größe.llvm.99…", "größe…"),
            (ANONYMOUS, ""),
        ] {
            assert_eq!(plain(name), wanted, "{name}");
        }
    }

    #[test]
    fn arguments_are_left_out() {
        for (name, wanted) in [
            ("f", "f"),
            ("a::f(int, void (*)(long))", "a::f"),
            ("(anonymous namespace)::g(char) const", "(anonymous namespace)::g"),
            ("f(int)::{lambda(int)#1}::operator()(int) const", "f(int)::{lambda(int)#1}::operator()"),
            ("std::function<void (int)>::swap", "std::function<void (int)>::swap"),
            ("(x)", "(x)"),
            ("f)", "f)"),
        ] {
            assert_eq!(without_arguments(name), wanted);
        }
    }

    #[test]
    fn tokens_are_words() {
        let of = |text| tokens(text).collect::<Vec<_>>();
        assert_eq!(of("a::~B<int, 3>(char const*)"), ["a", "~B", "int", "3", "char", "const"]);
        assert_eq!(of("~~x ~ é…_1"), ["~x", "é…_1"]);
        assert_eq!(of(""), [""; 0]);
    }

    #[test]
    fn a_frame_has_the_entries_of_its_kind_of_model() {
        let end = STEP_END;
        let table = Names::read(&section("table", &["", "f", "g"], &[]), 3).unwrap();
        assert_eq!(table.entries("g.isra.0;x;f"), [2 | end, end, 1 | end]);
        assert_eq!(table.entries("x;y"), [end]);
        assert_eq!(table.entries("f(int)"), [1 | end]);
        let overloaded = Names::read(&section("table", &["", "f(int)", "f(long)"], &[]), 3).unwrap();
        assert_eq!(overloaded.entries("f(char);f(int)"), [end, 1 | end]);
        let tokens = Names::read(&section("lstm-tokens", &["UNK", "@", "f"], &[]), 3).unwrap();
        assert_eq!(tokens.entries("f(x)"), [2 | end, end, 1 | end]);
        let frames = Names::read(&section("lstm-frames", &["UNK", "@", "f", "x"], &["f(x)"]), 5).unwrap();
        assert_eq!(frames.entries("f(x)"), [4 | end]);
        assert_eq!(frames.entries("f(x).part.3"), [4 | end]);
        assert_eq!(frames.entries("f(x, f)"), [2, 3 | end]);
        assert_eq!(frames.entries("()"), [end]);
        // Code without a name is unknown code, unless training saw such code: then it has that frame's row.
        assert_eq!(table.entries(ANONYMOUS), table.entries(""));
        assert_eq!(tokens.entries(ANONYMOUS), [1 | end]);
        let seen = Names::read(&section("lstm-frames", &["UNK", "@"], &[ANONYMOUS]), 3).unwrap();
        assert_eq!((frames.entries(ANONYMOUS), seen.entries("")), (vec![end], vec![2 | end]));
    }

    #[test]
    fn refuses_impossible_names() {
        let refused = |section: &[u8], rows| Names::read(section, rows).err().unwrap().to_string();
        assert_eq!(refused(b"", 9), "its names are damaged");
        assert_eq!(refused(&section("table", &[], &[]), 9), "its names are damaged");
        assert_eq!(refused(&section("table", &["", "f"], &[]), 1), "its names are more than its rows");
        assert_eq!(refused(&section("conv", &["", "f"], &[]), 9), "its encoder \"conv\" is not known here");
    }
}
