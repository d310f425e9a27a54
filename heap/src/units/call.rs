//! A call of malloc, as all layers use it.

/// The data of a call that needs no look-up.
#[derive(Clone, Copy)]
pub struct Call {
    /// Bytes asked for.
    pub size: usize,
    /// The return address.
    pub caller: usize,
    /// The stack pointer of the caller.
    pub stack: usize,
}

impl Call {
    /// The word of the stack this many words above the return address.
    ///
    /// # Safety
    /// It can be read: see `ThreadStack::may_read`.
    #[inline]
    pub unsafe fn word_above(&self, words: u8) -> usize {
        let above = self.stack.wrapping_add(size_of::<usize>() * usize::from(words)) - size_of::<usize>();
        // SAFETY: the caller guarantees that the word can be read.
        unsafe { (above as *const usize).read_volatile() }
    }

    /// The call's key with the lower half of this word of the stack.
    #[inline]
    pub fn with_word(self, word: usize) -> Self {
        Self { caller: self.caller ^ (word as u32).wrapping_mul(WORD_FACTOR) as usize, ..self }
    }
}

/// The factor of the lower half of such a word.
pub const WORD_FACTOR: u32 = 0x85EB_CA6B;

static NOWHERE: usize = 0;

/// The address of a call's return address: all that an entry point passes on, read when needed.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ReturnSlot(*const usize);

impl ReturnSlot {
    /// For a call without a known caller.
    pub const NONE: Self = Self(&raw const NOWHERE);

    /// The return address; 0 for [`ReturnSlot::NONE`].
    #[inline(always)]
    pub fn caller(self) -> usize {
        // SAFETY: except for `NONE`, only the entry points of `heap/malloc` make one: it is their stack
        // pointer at the call, which has not returned.
        unsafe { *self.0 }
    }

    /// The call with a request for `size` bytes.
    #[inline(always)]
    pub fn call_for(self, size: usize) -> Call {
        Call { size, caller: self.caller(), stack: self.0.addr() + size_of::<usize>() }
    }
}
