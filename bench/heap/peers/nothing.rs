//! Nothing: this package is a list of sources (see Cargo.toml).
