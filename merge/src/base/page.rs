//! Pages and their hashes: XXH3-128 under the store's own secret, so that an attacker cannot compute two
//! colliding pages in advance (UPM §V-A uses plain xxHash).

use twox_hash::xxhash3_128::Hasher;

/// Bytes in a page. Huge pages are merged in units of these, too.
pub const PAGE_BYTES: usize = 4096;

/// Bytes in a store's secret, as XXH3 requires.
pub const SECRET_BYTES: usize = 192;

/// A page's contents, 128 bits of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PageHash {
    /// Selects the line where a search of the index begins.
    pub place: u64,
    /// Stored in the index, to tell pages apart.
    pub tag: u64,
}

/// A store's secret, which keys its hashes.
#[derive(Clone)]
pub struct Secret(Box<[u8; SECRET_BYTES]>);

impl Secret {
    /// From bytes.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(Box::new(bytes))
    }

    /// The bytes, for a client of the same trust domain.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// The hash of one page.
    #[inline]
    pub fn hash(&self, page: &[u8]) -> PageHash {
        debug_assert_eq!(page.len(), PAGE_BYTES);
        // The hasher refuses only secrets that are too short, and the type fixes the length of this one.
        let both = Hasher::oneshot_with_secret(&self.0[..], page).unwrap_or_default();
        PageHash { place: both as u64, tag: (both >> 64) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_secret_and_page() {
        let (one, other) = (Secret::new([7; SECRET_BYTES]), Secret::new([8; SECRET_BYTES]));
        let (mut page, zero) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        page[PAGE_BYTES - 1] = 1;
        assert_eq!(one.hash(&page), one.hash(&page));
        assert_ne!(one.hash(&page), one.hash(&zero));
        assert_ne!(one.hash(&page), other.hash(&page));
    }
}
