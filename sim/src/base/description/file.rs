//! A machine file: what it inherits, and on which line a mistake in it is.

use super::{Description, built_in, one_line};
use std::path::Path;

/// A file inherits another, which inherits a third, and so on: no more than so many.
const DEEPEST: usize = 8;

/// A machine's keys, those of a file in place of what it inherits.
pub(super) struct Merged {
    /// All keys.
    pub table: toml::Table,
    /// The file's own, `SECTION.KEY`, each with its line, by the text that it has there.
    own: Vec<Own>,
    /// What it inherits.
    base: toml::Table,
}

struct Own {
    key: String,
    line: usize,
    value: toml::Value,
}

/// The machine of this text. `base`, a name or a file relative to `folder`, is what it inherits; Table 3's if
/// it names none. `name`: its name if the text has none.
///
/// # Errors
/// One line, with the line of the file that is wrong.
pub(super) fn merged(text: &str, folder: &Path, name: Option<&str>, depth: usize) -> Result<Merged, String> {
    let at = |place: Option<std::ops::Range<usize>>| {
        place.map_or(1, |place| 1 + text[..place.start.min(text.len())].matches('\n').count())
    };
    let failed = |error: toml::de::Error| format!("line {}: {}", at(error.span()), one_line(&error));
    let spans = toml::de::DeTable::parse(text).map_err(failed)?;
    let values: toml::Table = text.parse().map_err(failed)?;
    let mut table = match values.get("base") {
        None => built_in("table3").expect("Table 3 is built in"),
        Some(toml::Value::String(name)) => {
            inherited(name, folder, depth).map_err(|error| format!("base = \"{name}\": {error}"))?
        }
        Some(_) => return Err("base: the name of a machine, or of a file, is needed".to_owned()),
    };
    if let Some(name) = name {
        table.insert("name".to_owned(), name.into());
    }
    let mut merged = Merged { base: table.clone(), own: Vec::new(), table: toml::Table::new() };
    for (section, value) in spans.get_ref() {
        let line = at(Some(section.span()));
        let section = section.get_ref().as_ref();
        if section == "base" {
            continue;
        }
        let Some(keys) = value.get_ref().as_table() else {
            if section != "name" {
                return Err(format!("line {line}: unknown key {section}: there are base, name and sections"));
            }
            table.insert(section.to_owned(), values[section].clone());
            continue;
        };
        let known = known(section, &table).ok_or_else(|| {
            let all: Vec<_> =
                table.iter().filter(|(_, one)| one.is_table()).map(|(name, _)| &**name).collect();
            format!("line {line}: unknown section [{section}]: there are {}", all.join(", "))
        })?;
        let inside = table.entry(section).or_insert_with(|| toml::Table::new().into());
        let inside = inside.as_table_mut().ok_or("a section")?;
        for key in keys.keys() {
            let (line, name) = (at(Some(key.span())), key.get_ref().as_ref());
            if !known.contains_key(name) {
                let all: Vec<_> = known.keys().map(|name| &**name).collect();
                return Err(format!(
                    "line {line}: unknown key {section}.{name}: there are {}",
                    all.join(", ")
                ));
            }
            let value = values[section][name].clone();
            inside.insert(name.to_owned(), value.clone());
            merged.own.push(Own { key: format!("{section}.{name}"), line, value });
        }
    }
    merged.table = table;
    Ok(merged)
}

fn inherited(name: &str, folder: &Path, depth: usize) -> Result<toml::Table, String> {
    if let Some(table) = built_in(name) {
        return Ok(table);
    }
    if depth == DEEPEST {
        return Err(format!("more than {DEEPEST} files inherit one another"));
    }
    let file = folder.join(name);
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let merged = merged(&text, file.parent().unwrap_or(folder), None, depth + 1)?;
    Ok(merged.table)
}

/// All keys that a section can have, if there is such a section: those of units that the machine lacks as
/// well.
fn known(section: &str, table: &toml::Table) -> Option<toml::Table> {
    let optional = match section {
        "memento" => toml::Table::try_from(memento::Config::default()),
        "support" => toml::Table::try_from(super::SupportDescription::default()),
        "sample" => toml::Table::try_from(super::SampleDescription::default()),
        _ => return table.get(section)?.as_table().cloned(),
    };
    optional.ok()
}

impl Merged {
    /// An error of the whole machine, with the line of the file that it is on.
    pub fn on_its_line(&self, error: String) -> String {
        // A value that this key cannot have, as what it inherits, with the key alone, shows.
        let alone = |own: &&Own| {
            let mut table = self.base.clone();
            let (section, name) = own.key.split_once('.').expect("a section's key");
            let inside = table.entry(section).or_insert_with(|| toml::Table::new().into());
            inside.as_table_mut().expect("a section").insert(name.to_owned(), own.value.clone());
            table.try_into::<Description>().is_err()
        };
        let words: Vec<_> = error.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').collect();
        if let Some(own) = self.own.iter().find(|own| words.contains(&&*own.key)) {
            return format!("line {}: {error}", own.line);
        }
        match self.own.iter().find(alone) {
            Some(own) => format!("line {}: {}: {error}", own.line, own.key),
            None => error,
        }
    }
}
