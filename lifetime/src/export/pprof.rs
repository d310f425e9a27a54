//! A profile as pprof's `profile.proto`, gzipped: `go tool pprof FILE` opens it. Samples carry the values of
//! Go's heap profiles, allocated and still-live objects and bytes, and the lifetime class as the label
//! `lifetime`.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use prost::Message;

use crate::code::symbols::{Function as Named, Symbols, hexadecimal};
use crate::profile::contents::{Context, Frame, Profile};
use crate::profile::label::lifetime;

// The parts of profile.proto that are used, with its field numbers.

#[derive(Clone, PartialEq, Message)]
struct Proto {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Builds the message; each string, function and location is in it once.
struct Builder<'a, 'b> {
    proto: Proto,
    strings: HashMap<String, i64>,
    functions: HashMap<(String, String), u64>,
    locations: HashMap<Frame, u64>,
    profile: &'a Profile,
    symbols: &'b mut Symbols<'a>,
}

impl Builder<'_, '_> {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.strings.get(text) {
            return number;
        }
        let number = self.proto.string_table.len() as i64;
        self.proto.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn value_type(&mut self, r#type: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.string(r#type), unit: self.string(unit) }
    }

    fn function(&mut self, named: &Named) -> u64 {
        let key = (named.name.clone(), named.file.clone());
        if let Some(&id) = self.functions.get(&key) {
            return id;
        }
        let id = self.proto.function.len() as u64 + 1;
        let name = self.string(&named.name);
        let filename = self.string(&named.file);
        self.proto.function.push(Function { id, name, system_name: name, filename });
        self.functions.insert(key, id);
        id
    }

    fn location(&mut self, frame: Frame) -> u64 {
        if let Some(&id) = self.locations.get(&frame) {
            return id;
        }
        let names = self.symbols.of(frame).to_vec();
        let line = names
            .iter()
            .map(|named| Line { function_id: self.function(named), line: i64::from(named.line) })
            .collect();
        let id = self.proto.location.len() as u64 + 1;
        let base = frame.module.map_or(0, |number| self.profile.modules[number].load_address);
        let mapping_id = frame.module.map_or(0, |number| number as u64 + 1);
        let address = frame.offset.wrapping_add(base);
        self.proto.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(frame, id);
        id
    }

    fn sample(&mut self, context: &Context) {
        let location_id = context.frames.iter().map(|&frame| self.location(frame)).collect();
        let class = lifetime(context).map_or("unknown".to_owned(), |lifetime| lifetime.to_string());
        let label = vec![Label { key: self.string("lifetime"), str: self.string(&class) }];
        let values = [context.allocations, context.bytes, context.live_allocations(), context.live_bytes()];
        let value = values.iter().map(|value| value.round() as i64).collect();
        self.proto.sample.push(Sample { location_id, value, label });
    }
}

/// Writes the profile to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, path: &Path) -> Result<()> {
    let bytes = encode(profile, symbols);
    let cannot = || format!("cannot write {}", path.display());
    let file = std::fs::File::create(path).with_context(cannot)?;
    let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    gzip.write_all(&bytes).with_context(cannot)?;
    gzip.finish().with_context(cannot)?;
    Ok(())
}

fn encode<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>) -> Vec<u8> {
    let mut builder = Builder {
        proto: Proto::default(),
        strings: HashMap::new(),
        functions: HashMap::new(),
        locations: HashMap::new(),
        profile,
        symbols,
    };
    builder.string(""); // pprof requires it first
    for (r#type, unit) in [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ] {
        let value_type = builder.value_type(r#type, unit);
        builder.proto.sample_type.push(value_type);
    }
    // pprof assumes that the first is the program.
    let program = profile.program().into_iter();
    let others = (0..profile.modules.len()).filter(|&number| Some(number) != profile.program());
    for number in program.chain(others) {
        let module = &profile.modules[number];
        let filename = builder.string(&module.path.to_string_lossy());
        let build_id = builder.string(&hexadecimal(&module.build_id));
        builder.proto.mapping.push(Mapping {
            id: number as u64 + 1,
            memory_start: module.addresses.start,
            memory_limit: module.addresses.end,
            filename,
            build_id,
            has_functions: true,
        });
    }
    profile.contexts.iter().for_each(|context| builder.sample(context));
    builder.proto.time_nanos = profile.start_unix_ns as i64;
    builder.proto.duration_nanos = profile.duration_ns as i64;
    builder.proto.period_type = Some(builder.value_type("space", "bytes"));
    builder.proto.period = profile.mean_bytes as i64;
    builder.proto.default_sample_type = builder.string("alloc_space");
    builder.proto.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::contents::Module;

    #[test]
    fn the_first_file_is_the_program() {
        let module = |path: &str| Module {
            path: path.into(),
            build_id: vec![0xab],
            addresses: 0x1000..0x2000,
            load_address: 0x1000,
        };
        // A library may come first, through a thread that it starts.
        let modules = vec![module("/lib/libfirst.so.1"), module("/opt/server"), module("/lib/libc.so.6")];
        let frames = vec![Frame { module: Some(1), offset: 0x20 }, Frame { module: Some(0), offset: 0x10 }];
        let context = Context { frames, sampled: 1, allocations: 2.0, bytes: 64.0, ..Context::default() };
        let profile = Profile { modules, contexts: vec![context], ..Profile::default() };
        let proto = Proto::decode(&*encode(&profile, &mut Symbols::new(&profile))).unwrap();
        let text = |number: i64| proto.string_table[number as usize].as_str();
        let files: Vec<&str> = proto.mapping.iter().map(|mapping| text(mapping.filename)).collect();
        assert_eq!(files, ["/opt/server", "/lib/libfirst.so.1", "/lib/libc.so.6"], "pprof shows the first");
        let location = proto.location.iter().find(|one| one.id == proto.sample[0].location_id[0]).unwrap();
        let its = proto.mapping.iter().find(|mapping| mapping.id == location.mapping_id).unwrap();
        assert_eq!((text(its.filename), location.address), ("/opt/server", 0x1020));
        assert_eq!(proto.sample[0].value[..2], [2, 64]);
    }
}
