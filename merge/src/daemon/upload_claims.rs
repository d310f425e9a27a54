//! Which client is about to upload which pages: of several clients that have the same new pages at the same
//! moment, one uploads them and the others wait for it. A claim ends with the client's next offer, with its
//! connection, or after a second.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::base::page::PageHash;

const LASTS: Duration = Duration::from_secs(1);
/// Of one client; its further claims are not recorded, and pages may be uploaded twice.
const MAX_CLAIMS_PER_CLIENT: usize = 8192;

/// The claims of a domain.
#[derive(Default)]
pub struct Claims {
    of: HashMap<PageHash, (u64, Instant)>,
    by: HashMap<u64, Vec<PageHash>>,
}

impl Claims {
    /// Claims pages for a client. Returns a bit for each page: whether the client is to upload it.
    pub fn claim(&mut self, client: u64, pages: &[PageHash], is_there: impl Fn(PageHash) -> bool) -> Vec<u8> {
        let now = Instant::now();
        let mut granted = vec![0; pages.len().div_ceil(8)];
        let list = self.by.entry(client).or_default();
        for (i, &page) in pages.iter().enumerate() {
            if is_there(page) {
                continue;
            }
            let is_free = match self.of.get(&page) {
                Some(&(other, since)) => other == client || now.duration_since(since) > LASTS,
                None => true,
            };
            if is_free {
                granted[i / 8] |= 1 << (i % 8);
                if list.len() < MAX_CLAIMS_PER_CLIENT {
                    self.of.insert(page, (client, now));
                    list.push(page);
                }
            }
        }
        granted
    }

    /// Ends a client's claims, when it has offered the pages or disconnected.
    pub fn release(&mut self, client: u64) {
        for page in self.by.remove(&client).unwrap_or_default() {
            if self.of.get(&page).is_some_and(|&(owner, _)| owner == client) {
                self.of.remove(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_lasts_until_its_client_offers_or_disconnects() {
        let pages: Vec<PageHash> = (0..20).map(|n| PageHash { place: n, tag: n }).collect();
        let mut claims = Claims::default();
        let none = |_| false;
        assert_eq!(claims.claim(1, &pages[..10], none), [0xff, 0b11]);
        assert_eq!(claims.claim(2, &pages[5..15], none), [0b1110_0000, 0b11]);
        assert_eq!(claims.claim(1, &pages[..10], none), [0xff, 0b11], "asked again");
        claims.release(1);
        assert_eq!(claims.claim(3, &pages[..11], none), [0xff, 0b11]);
        assert_eq!(claims.claim(3, &pages[15..20], |page| page.tag == 16), [0b11101]);
        claims.release(2);
        claims.release(3);
        assert!(claims.of.is_empty() && claims.by.is_empty());
    }
}
