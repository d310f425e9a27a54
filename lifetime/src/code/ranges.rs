//! Names for all the code of a module, whether a profile has it on a stack or not: a model that knows
//! functions by the tokens of their names can then predict for contexts that no profile held (LLAMA §5.2).

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use addr2line::{Loader, demangle_auto};
use anyhow::{Result, anyhow, bail, ensure};
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SegmentFlags, SymbolKind};

use crate::code::root::Root;
use crate::code::symbols::{INLINED_SEPARATOR, Symbols, build_id, plain};
use crate::profile::contents::{Frame, Module};

/// Code of one function, or of one inlined into others.
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    /// Address in the module's file.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Its names as in a stack's text, innermost first; the module's file name where there is no function.
    /// The ranges of a function share them.
    pub names: Rc<str>,
}

/// Names met so far, each stored once: a large program has a hundred ranges for each function.
#[derive(Default)]
struct Names {
    /// Demangled names, by symbol.
    demangled: HashMap<String, String>,
    joined: HashMap<String, Rc<str>>,
}

impl Names {
    fn add(&mut self, to: &mut String, symbol: &str, language: Option<addr2line::gimli::DwLang>) {
        if !self.demangled.contains_key(symbol) {
            let name = demangle_auto(Cow::Borrowed(symbol), language).into_owned();
            self.demangled.insert(symbol.to_owned(), plain(&name).to_owned());
        }
        if !to.is_empty() {
            to.push_str(INLINED_SEPARATOR);
        }
        to.push_str(&self.demangled[symbol]);
    }

    /// The names of an address as in a stack's text (see [`Symbols::text_of`]); `None` where there is no
    /// function.
    fn at(&mut self, loader: &Loader, address: u64) -> Option<Rc<str>> {
        let mut names = String::new();
        if let Ok(mut frames) = loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let Some(function) = frame.function else { continue };
                let Ok(symbol) = function.raw_name() else { continue };
                self.add(&mut names, &symbol, function.language);
            }
        }
        if names.is_empty() {
            self.add(&mut names, loader.find_symbol(address)?, None);
        }
        Some(self.one(names))
    }

    fn one(&mut self, names: String) -> Rc<str> {
        if let Some(known) = self.joined.get(&names) {
            return known.clone();
        }
        let shared: Rc<str> = names.as_str().into();
        self.joined.insert(names, shared.clone());
        shared
    }
}

/// The code of a program or library, read without a profile.
pub struct Code {
    /// The path of its file.
    pub path: PathBuf,
    /// Its build-id.
    pub build_id: Vec<u8>,
    /// All its functions.
    pub ranges: Vec<Range>,
}

impl Code {
    /// Names the functions of a file.
    ///
    /// # Errors
    /// The file is no readable 64-bit ELF file, or has no build-id, by which the heap would know it.
    pub fn read(path: &Path) -> Result<Code> {
        let build_id = build_id(path).map_err(|why| anyhow!("{}: {why}", path.display()))?;
        ensure!(
            !build_id.is_empty(),
            "{}: it has no build-id, by which the heap would know it: link it with -Wl,--build-id",
            path.display()
        );
        let module =
            Module { path: path.to_owned(), build_id: build_id.clone(), addresses: 0..0, load_address: 0 };
        let mut symbols = Symbols::of_modules(&Root::Own, std::slice::from_ref(&module));
        let ranges = ranges(&mut symbols, &module, 0, &[]);
        if let Some(missing) = symbols.missing.first() {
            bail!("{missing}");
        }
        Ok(Code { path: path.to_owned(), build_id, ranges })
    }
}

/// The code of these calls, an address each, ascending.
pub fn of_calls(symbols: &mut Symbols<'_>, calls: &[Frame]) -> Vec<Range> {
    let mut names = Names::default();
    let mut named: Vec<_> = calls
        .iter()
        .map(|&frame| (frame.offset.wrapping_sub(1), names.one(symbols.text_of(frame))))
        .collect();
    named.sort();
    named.dedup();
    named.into_iter().map(|(address, names)| Range { start: address, end: address + 1, names }).collect()
}

/// All the code of a module, ascending, without overlaps. The addresses of `calls` have the names of the
/// stacks' text.
pub fn ranges(symbols: &mut Symbols<'_>, module: &Module, number: usize, calls: &[Frame]) -> Vec<Range> {
    let file_name = module.path.file_name().unwrap_or_default().to_string_lossy();
    let mut names = Names::default();
    let anonymous = names.one(plain(&file_name).to_owned());
    let mut ranges: Vec<Range> = Vec::new();
    if let Some((loader, path)) = symbols.loader(number) {
        let edges = edges(loader, path).unwrap_or_default();
        for pair in edges.windows(2) {
            let names = names.at(loader, pair[0]).unwrap_or_else(|| anonymous.clone());
            match ranges.last_mut() {
                Some(last) if last.end == pair[0] && last.names == names => last.end = pair[1],
                _ => ranges.push(Range { start: pair[0], end: pair[1], names }),
            }
        }
    }
    let mut calls: Vec<_> = calls
        .iter()
        .map(|&frame| (frame.offset.wrapping_sub(1), names.one(symbols.text_of(frame))))
        .collect();
    calls.sort();
    calls.dedup();
    calls.into_iter().for_each(|(address, names)| name_one(&mut ranges, address, names));
    ranges
}

/// Gives one address names of its own, if its range has others.
fn name_one(ranges: &mut Vec<Range>, address: u64, names: Rc<str>) {
    let at = ranges.partition_point(|range| range.end <= address);
    let one = Range { start: address, end: address + 1, names };
    match ranges.get_mut(at) {
        Some(range) if range.start <= address => {
            if range.names == one.names {
                return;
            }
            let before = Range { start: range.start, end: address, names: range.names.clone() };
            range.start = address + 1;
            let is_empty = range.start == range.end;
            let with = if before.start == address { vec![one] } else { vec![before, one] };
            ranges.splice(at..at + usize::from(is_empty), with);
        }
        _ => ranges.insert(at, one),
    }
}

/// The addresses at which names may change: symbols' beginnings and ends, and every row of the line table,
/// where inlined functions begin and end.
fn edges(loader: &Loader, path: &Path) -> Option<Vec<u64>> {
    let bytes = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&bytes).ok()?;
    let executable =
        |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.contains(object::elf::PF_X));
    let mut edges = Vec::new();
    for segment in file.segments().filter(|segment| executable(segment.flags())) {
        let (start, end) = (segment.address(), segment.address() + segment.size());
        edges.extend([start, end]);
        let inside = start..end;
        let text =
            file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.kind() == SymbolKind::Text);
        for symbol in text.filter(|symbol| inside.contains(&symbol.address())) {
            edges.extend([symbol.address(), symbol.address().saturating_add(symbol.size()).min(end)]);
        }
        if let Ok(rows) = loader.find_location_range(start, end) {
            edges.extend(rows.map(|(address, _, _)| address).filter(|address| inside.contains(address)));
        }
    }
    edges.sort_unstable();
    edges.dedup();
    Some(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, names: &str) -> Range {
        Range { start, end, names: names.into() }
    }

    #[test]
    fn an_observed_call_has_the_names_of_its_stack() {
        let mut ranges = vec![range(10, 20, "a"), range(20, 30, "b")];
        name_one(&mut ranges, 15, "a".into());
        assert_eq!(ranges.len(), 2);
        name_one(&mut ranges, 15, "x".into());
        assert_eq!(ranges, [range(10, 15, "a"), range(15, 16, "x"), range(16, 20, "a"), range(20, 30, "b")]);
        name_one(&mut ranges, 20, "y".into());
        name_one(&mut ranges, 29, "z".into());
        name_one(&mut ranges, 15, "w".into());
        name_one(&mut ranges, 40, "v".into());
        let starts: Vec<_> = ranges.iter().map(|range| (range.start, range.end, &*range.names)).collect();
        let wanted = [
            (10, 15, "a"),
            (15, 16, "w"),
            (16, 20, "a"),
            (20, 21, "y"),
            (21, 29, "b"),
            (29, 30, "z"),
            (40, 41, "v"),
        ];
        assert_eq!(starts, wanted);
    }
}
