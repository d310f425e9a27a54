//! Pages and what they are found by: XXH3-128 under the store's own secret, so that nobody can work out in advance two
//! pages that meet (UPM §V-A uses plain xxHash).

use twox_hash::xxhash3_128::Hasher;

/// Bytes in a page. Huge pages are merged by these, too.
pub const PAGE_BYTES: usize = 4096;

/// Bytes in a store's secret, as XXH3 wants it.
pub const SECRET_BYTES: usize = 192;

/// A page's contents, 128 bits of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PageHash {
    /// Chooses where the index is searched.
    pub place: u64,
    /// What the index keeps to tell pages apart.
    pub tag: u64,
}

/// A store's way to hash.
#[derive(Clone)]
pub struct Secret(Box<[u8; SECRET_BYTES]>);

impl Secret {
    /// From the store's bytes.
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
        // It refuses secrets that are too short only, and ours has its length in its type.
        let both = Hasher::oneshot_with_secret(&self.0[..], page).unwrap_or_default();
        PageHash { place: both as u64, tag: (both >> 64) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_matter_and_pages_differ() {
        let (one, other) = (Secret::new([7; SECRET_BYTES]), Secret::new([8; SECRET_BYTES]));
        let (mut page, zero) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        page[PAGE_BYTES - 1] = 1;
        assert_eq!(one.hash(&page), one.hash(&page));
        assert_ne!(one.hash(&page), one.hash(&zero));
        assert_ne!(one.hash(&page), other.hash(&page));
    }
}
