//! A worker's pages for people: the page at `/` and the file that `mayfly report` writes.
//!
//! Pages are rendered here, whole, with charts as inline SVG. They need no network. The page's script only
//! reloads it and shows numbers under the pointer; without the script the page is as complete.
//!
//! | module | contents |
//! |---|---|
//! | [`data`] | what a worker publishes about itself, as types and as JSON |
//! | [`chart`], [`lanes`] | charts over time: stacked areas and lines; events |
//! | [`errors`] | calls that fail: how many over time, and why |
//! | [`figures`], [`events`] | figures computed from samples; from events |
//! | [`view`], [`page`] | the input of the page at `/`; the page |
//! | [`run`] | a run kept in a file, and its figures |
//! | [`report`] | runs beside one another, as one file |
//! | [`text`] | formatted amounts and times, and escaped text for HTML |

pub mod chart;
pub mod data;
pub mod errors;
pub mod events;
pub mod figures;
pub mod lanes;
pub mod page;
pub mod report;
pub mod run;
pub mod text;
pub mod view;
