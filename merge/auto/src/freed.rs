//! Blocks that the program has freed, kept for its next allocations of the same size. A program that frees
//! and allocates its large buffers over and over would else have all their pages mapped anew each time; glibc
//! raises its threshold for mappings then, and serves such buffers from its heap. The scanner unmaps what the
//! program has not taken for a second.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::block::{Block, Contents};

const MOST_BLOCKS: usize = 64;
/// Of one block, and of all: as much as glibc's heap serves, and keeps at its end.
const LARGEST_BYTES: usize = 32 << 20;
const MOST_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
struct Freed {
    block: Block,
    /// The scanner's round in which it was freed.
    round: u64,
}

/// A list of them. A child may be forked by clone amid any of these: a block is then missing in the child's
/// list, which costs it memory, or is in it twice, and is never in it once the program has it again.
pub struct FreedBlocks {
    list: [Freed; MOST_BLOCKS],
    count: usize,
    round: u64,
    is_open: bool,
}

impl FreedBlocks {
    /// An empty list, which takes none yet.
    pub const NONE: FreedBlocks = FreedBlocks {
        list: [Freed { block: Block::NONE, round: 0 }; MOST_BLOCKS],
        count: 0,
        round: 0,
        is_open: false,
    };

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// From now on it takes blocks. The caller ends rounds at intervals.
    pub fn open(&mut self) {
        self.is_open = true;
    }

    /// Unmaps all blocks; from now on it takes none.
    pub fn close(&mut self) {
        self.is_open = false;
        self.unmap_all();
    }

    /// Unmaps all blocks. Whether there were any.
    pub fn unmap_all(&mut self) -> bool {
        let had_any = self.count > 0;
        while self.count > 0 {
            self.remove(self.count - 1).unmap();
        }
        had_any
    }

    /// Takes a block into the list, in place of the oldest if there is no room. False if it does not.
    pub fn keep(&mut self, block: Block) -> bool {
        if !self.is_open || block.bytes > LARGEST_BYTES {
            return false;
        }
        while self.count == MOST_BLOCKS || self.bytes() + block.bytes > MOST_BYTES {
            let list = &self.list[..self.count];
            let oldest =
                (0..list.len()).min_by_key(|&at| (list[at].round, list[at].block.number)).unwrap_or_default();
            self.remove(oldest).unmap();
        }
        self.list[self.count] = Freed { block, round: self.round };
        compiler_fence(Ordering::SeqCst);
        self.count += 1;
        true
    }

    fn bytes(&self) -> usize {
        self.list[..self.count].iter().map(|freed| freed.block.bytes).sum()
    }

    /// The smallest block of at least so many bytes, unless it is larger by more than an eighth: what the
    /// program does not use of it would stay resident. Zeros are taken from what were zeros before: emptied,
    /// another block would be of no use to the program's next malloc.
    ///
    /// The program may have protected its memory and freed it so. What cannot be opened again is unmapped.
    pub fn take(&mut self, bytes: usize, contents: Contents) -> Option<Block> {
        let fits = |Freed { block, .. }: &Freed| {
            block.contents == contents && block.bytes >= bytes && block.bytes - bytes <= bytes / 8
        };
        let list = &self.list[..self.count];
        let at = (0..list.len()).filter(|&at| fits(&list[at])).min_by_key(|&at| list[at].block.bytes)?;
        let block = self.remove(at);
        if !block.open() {
            block.unmap();
            return None;
        }
        Some(block)
    }

    /// Ends a round: unmaps what was freed before it began.
    pub fn end_round(&mut self) {
        for at in (0..self.count).rev() {
            if self.list[at].round < self.round {
                self.remove(at).unmap();
            }
        }
        self.round += 1;
    }

    fn remove(&mut self, at: usize) -> Block {
        let block = self.list[at].block;
        self.list[at] = self.list[self.count - 1];
        compiler_fence(Ordering::SeqCst);
        self.count -= 1;
        block
    }
}
