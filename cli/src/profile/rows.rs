//! The rows of a profile's table: a context's stack as few words.

use std::collections::HashMap;

use lifetime::code::readable::{end_of, is_generic, is_of_language, short};
use lifetime::code::symbols::{Function, Symbols};
use lifetime::profile::contents::{Context, Frame, Profile};

/// Functions of a stack that a line shows.
const FUNCTIONS: usize = 4;

/// The contexts as rows, most of `key` first. Contexts that differ only in the depth of a recursion or in
/// functions that a line does not show are one for people. Where others have the same words, the place of the
/// innermost function tells them apart.
pub fn rows(profile: &Profile, symbols: &mut Symbols, key: fn(&Context) -> f64) -> Vec<(String, Context)> {
    let mut numbers: HashMap<Line, usize> = HashMap::new();
    let mut rows: Vec<(Line, Context)> = Vec::new();
    for context in profile.contexts.iter().cloned() {
        let line = line_of(&context.frames, symbols);
        match numbers.get(&line) {
            Some(&number) => rows[number].1.add(context),
            None => {
                numbers.insert(line.clone(), rows.len());
                rows.push((line, context));
            }
        }
    }
    rows.sort_by(|a, b| key(&b.1).total_cmp(&key(&a.1)));
    let mut same: HashMap<&str, u32> = HashMap::new();
    numbers.keys().for_each(|line| *same.entry(&line.words).or_default() += 1);
    let told = |line: Line| if same[&*line.words] > 1 { line.with_place() } else { line.words };
    rows.into_iter().map(|(line, context)| (told(line), context)).collect()
}

/// What a row shows of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// Its innermost functions that are specific to the program.
    pub words: String,
    /// The place of the innermost of them: `:LINE`, or `+0xOFFSET` in its file.
    place: String,
}

impl Line {
    fn with_place(&self) -> String {
        match self.words.split_once(" < ") {
            Some((first, rest)) => format!("{first}{} < {rest}", self.place),
            None => format!("{}{}", self.words, self.place),
        }
    }
}

/// A function's name in a line. A lambda that was inlined has no scope in debuggers' tables: then its place.
fn name_of(function: &Function, is_made: bool) -> String {
    if is_made {
        return end_of(&function.name); // a name that the program gave has no compiler's form
    }
    let file = function.file.rsplit('/').next().unwrap_or_default();
    match short(&function.name) {
        name if name == "operator()" && !file.is_empty() => {
            end_of(&format!("lambda {file}:{}", function.line))
        }
        name => name,
    }
}

/// The innermost functions of a context that are specific to the program, each once.
pub fn line_of(frames: &[Frame], symbols: &mut Symbols) -> Line {
    let mut all: (Vec<String>, String) = Default::default();
    let mut specific: (Vec<String>, String) = Default::default();
    for &frame in frames {
        let is_made = frame.module.is_none();
        for function in symbols.of(frame) {
            let name = name_of(function, is_made);
            let add = |(known, place): &mut (Vec<String>, String)| {
                if known.is_empty() && !is_made && !name.contains("+0x") {
                    *place = match function.line {
                        0 => format!("+{:#x}", frame.offset),
                        line => format!(":{line}"),
                    };
                }
                if known.len() < FUNCTIONS && !known.contains(&name) {
                    known.push(name.clone());
                }
            };
            if !is_generic(&function.name) && !is_of_language(&function.file) {
                add(&mut specific);
            }
            add(&mut all);
        }
        if specific.0.len() >= FUNCTIONS {
            break;
        }
    }
    let (names, place) = if specific.0.is_empty() { all } else { specific };
    Line { words: names.join(" < "), place }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_rows_of_the_same_words_apart() {
        let line = |words: &str| Line { words: words.into(), place: ":14".into() };
        assert_eq!(line("serve < main").with_place(), "serve:14 < main");
        assert_eq!(line("main").with_place(), "main:14");
    }

    #[test]
    fn a_lambda_is_named_by_its_place() {
        let at = |name: &str, file: &str| Function { name: name.into(), file: file.into(), line: 7 };
        assert_eq!(name_of(&at("operator()", "/src/shop/cart.cc"), false), "lambda cart.cc:7");
        assert_eq!(name_of(&at("Cart::operator()(int)", "/src/cart.cc"), false), "Cart::operator()");
    }
}
