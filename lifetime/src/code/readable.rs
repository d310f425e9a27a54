//! Functions' names for people: without parameters, and without functions that are the same in every program.

/// Whether a function is of an allocator or of a language's library, which every context of that language
/// goes through, or has no name.
pub fn is_generic(name: &str) -> bool {
    const PATHS: [&str; 9] =
        ["std", "__gnu_cxx", "alloc", "core", "hashbrown", "boost", "__cxxabiv1", "__rust_alloc", "fmt"];
    const FUNCTIONS: [&str; 24] = [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "aligned_alloc",
        "posix_memalign",
        "memalign",
        "valloc",
        "strdup",
        "strndup",
        "__strdup",
        "asprintf",
        "vasprintf",
        "operator new",
        "operator new[]",
        "__libc_start_main",
        "__libc_start_call_main",
        "__libc_start_main_impl",
        "_start",
        "start_thread",
        "clone",
        "clone3",
        "__clone3",
        "__clone",
    ];
    let name = path_of(name);
    let first = name.split("::").next().unwrap_or(name);
    FUNCTIONS.contains(&name)
        || name.contains("+0x")
        || name.contains("::") && PATHS.contains(&first)
        || first.starts_with("__rust_")
        || first == "__rg_alloc"
}

/// Whether a source file is of a language's library. Where its code was inlined, debuggers' tables often have
/// no scope for its names: `operator=` and `__invoke_impl` could be anybody's.
pub fn is_of_language(file: &str) -> bool {
    ["/include/c++/", "/rustlib/src/"].iter().any(|part| file.contains(part)) || file.starts_with("/rustc/")
}

/// The type of `<A as B>::c`, without `<`, `&` and the like; else the name.
fn path_of(name: &str) -> &str {
    let name = base(name);
    let name = &name[..parameters(name)];
    name.trim_start_matches(['<', '&', '*', '[', '(']).trim_start_matches("mut ").trim_start_matches("dyn ")
}

/// A function's name for people, cut so that a line holds four of them.
pub fn short(name: &str) -> String {
    let plain = without_arguments(base(name));
    end_of(if plain.is_empty() { name } else { &plain })
}

/// The end of a name, as much as a line has room for.
pub fn end_of(plain: &str) -> String {
    const MOST: usize = 40;
    if plain.chars().count() <= MOST {
        return plain.to_owned();
    }
    // The end is more specific than the beginning.
    let skipped = plain.chars().count() - (MOST - 1);
    std::iter::once('…').chain(plain.chars().skip(skipped)).collect()
}

/// Without the return type, which demanglers put before the names of templates.
fn base(name: &str) -> &str {
    let end = parameters(name);
    if name[..end].contains("operator") {
        // `operator new`, `operator bool`: the space is the name's.
        let at = name[..end].find("operator").unwrap_or(0);
        return &name[last_space(&name[..at])..];
    }
    &name[last_space(&name[..end])..]
}

/// Behind the last space that is in no brackets; 0 if there is none.
fn last_space(name: &str) -> usize {
    let mut depth = 0i32;
    let mut behind = 0;
    let mut before = ' ';
    for (at, character) in name.char_indices() {
        match character {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' => depth -= 1,
            ' ' if depth == 0 => behind = at + 1,
            _ => {}
        }
        before = character;
    }
    behind
}

/// The place of the parameters: the first bracket of the outermost level, unless it is part of a scope's or
/// operator's name.
fn parameters(name: &str) -> usize {
    let mut depth = 0i32;
    let from = behind_operator(name);
    for (at, character) in name.char_indices().skip_while(|&(at, _)| at < from) {
        match character {
            '(' if depth == 0 && at > 0 && !name[at..].starts_with("(anonymous namespace)") => return at,
            '(' | '<' => depth += 1,
            ')' => depth -= 1,
            '>' if !name[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
    }
    name.len()
}

/// Behind `operator<<`, `operator()` and the like, whose brackets are names; 0 where there is none before the
/// parameters.
fn behind_operator(name: &str) -> usize {
    let Some(at) = name.find("operator").filter(|&at| !name[..at].trim_start_matches("(anon").contains('('))
    else {
        return 0;
    };
    let from = at + "operator".len();
    let rest = &name[from..];
    if rest.starts_with("()") {
        return from + 2;
    }
    from + rest.find(|character: char| !"<>=-+*/%^&|~![],".contains(character)).unwrap_or(0)
}

/// Without parameters and template arguments: `std::vector<int>::push_back(int&&)` is
/// `std::vector::push_back`.
fn without_arguments(name: &str) -> String {
    let name = &name[..parameters(name)];
    if name.starts_with('<') {
        return name.to_owned(); // Rust's `<T as Trait>::function`
    }
    let (text, operator) = match name.find("operator") {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    let mut depth = 0;
    let mut plain = String::new();
    for character in text.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain + operator
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_arguments_and_returned_types_are_left_out() {
        for (name, wanted) in [
            ("main", "main"),
            ("Handler::run(Request const&)", "Handler::run"),
            ("std::vector<int, std::allocator<int> >::push_back(int&&)", "std::vector::push_back"),
            ("void std::vector<Json>::emplace_back<char const*>(char const*&&)", "std::vector::emplace_back"),
            ("(anonymous namespace)::serve(int)", "(anonymous namespace)::serve"),
            ("Cache::operator()(int) const", "Cache::operator()"),
            ("operator new(unsigned long)", "operator new"),
            ("Stream& operator<< <char>(Stream&, char)", "operator<< <char>"),
            ("Server::on_read(int)::{lambda()#1}::operator()() const", "Server::on_read"),
            ("<app::Cache as core::ops::Drop>::drop", "<app::Cache as core::ops::Drop>::drop"),
            ("app+0x1234", "app+0x1234"),
        ] {
            assert_eq!(short(name), wanted, "{name}");
        }
        assert_eq!(short(&"x".repeat(60)).chars().count(), 40);
    }

    #[test]
    fn files_of_language_libraries_are_known() {
        for file in ["/usr/include/c++/12/bits/invoke.h", "/rustc/0123/library/alloc/src/vec/mod.rs"] {
            assert!(is_of_language(file), "{file}");
        }
        for file in ["", "s.cc", "/src/bits.c", "/home/me/c++/app.cc"] {
            assert!(!is_of_language(file), "{file}");
        }
    }

    #[test]
    fn functions_of_allocators_and_language_libraries_are_generic() {
        for name in [
            "std::__new_allocator<char>::allocate(unsigned long, void const*)",
            "void std::vector<Json>::_M_realloc_insert<Json>(Json&&)",
            "operator new(unsigned long)",
            "__gnu_cxx::new_allocator<int>::allocate(unsigned long)",
            "<alloc::vec::Vec<T> as core::iter::FromIterator<T>>::from_iter",
            "alloc::raw_vec::RawVec<T>::grow_one",
            "malloc",
            "__rust_alloc",
            "postgres+0x5c7860",
        ] {
            assert!(is_generic(name), "{name}");
        }
        for name in [
            "main",
            "Handler::run(std::string)",
            "stdlib_load",
            "core_dump",
            "void store<std::string>(int)",
            "<app::Cache as Drop>::drop",
        ] {
            assert!(!is_generic(name), "{name}");
        }
    }
}
