//! What people see of a worker: the page at `/` and the file that `mayfly report` writes.
//!
//! Pages are rendered here, whole, with charts as inline SVG. They need no network. The page's script only fetches it
//! anew and shows numbers under the pointer; without it the page is as complete.
//!
//! | module | what it is |
//! |---|---|
//! | [`data`] | what a worker tells of itself, as types and as JSON |
//! | [`chart`], [`lanes`] | charts over time: areas on one another and lines; events |
//! | [`figures`] | what samples and events come to |
//! | [`view`], [`page`] | what the page at `/` is made from; the page |
//! | [`run`] | a run kept in a file, and what it comes to in numbers |
//! | [`report`] | runs beside one another, as one file |
//! | [`text`] | amounts and times in words, and text in HTML |

pub mod chart;
pub mod data;
pub mod figures;
pub mod lanes;
pub mod page;
pub mod report;
pub mod run;
pub mod text;
pub mod view;
