//! Profiles of object lifetimes by calling context (LLAMA §4): reads the files of `mayfly profile`, names
//! their addresses, and exports them.
//!
//! Layers, from the bottom up; each imports from those before it only (`tests/modules` checks it):
//!
//! | layer | modules | what |
//! | --- | --- | --- |
//! | [`profile`] | [`profile::contents`], [`profile::file`] | a profile in memory; its file, which the heap writes and which holds addresses |
//! | | [`profile::label`] | the lifetime class of a context |
//! | [`code`] | [`code::symbols`], [`code::root`], [`code::readable`] | names of addresses, found outside the program, in the program's own files |
//! | | `code::separate` | the files with debug symbols of a program |
//! | | [`code::ranges`] | all the functions of a file |
//! | [`model`] | [`model::file`] | a model file, for people; the heap reads it itself |
//! | | [`model::sections`], [`model::names`], [`model::bind`] | gives a model the functions of another build, by their names |
//! | [`export`] | [`export::pprof`], [`export::table`] | a profile for other tools, and for training |

pub use lifetime_model::attach;

pub mod profile {
    //! A profile of one run: calling contexts, and how long their objects lived.
    pub mod contents;
    pub mod file;
    mod holes;
    pub mod label;
    mod write;
}

pub mod code {
    //! Names of the code that a profile or a file holds.
    mod perf_map;
    pub mod ranges;
    pub mod readable;
    pub mod root;
    mod separate;
    pub mod symbols;
}

pub mod model {
    //! Model files: read, taken apart, and bound to other builds.
    pub mod bind;
    pub mod file;
    pub mod names;
    pub mod sections;
}

pub mod export {
    //! Profiles in the formats of other programs.
    pub mod pprof;
    pub mod table;
}
