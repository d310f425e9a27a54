//! A call of malloc, as all layers see it.

/// What is known of a call without looking anything up.
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
    /// The word of the stack that lies so many words above the return address.
    ///
    /// # Safety
    /// It is there to be read: see `ThreadStack::may_read`.
    #[inline]
    pub unsafe fn word_above(&self, words: u8) -> usize {
        let above = self.stack.wrapping_add(size_of::<usize>() * usize::from(words)) - size_of::<usize>();
        // SAFETY: the caller's.
        unsafe { (above as *const usize).read_volatile() }
    }

    /// The call as tables know it that tell it from others by this word of the stack as well, of which the lower half counts.
    #[inline]
    pub fn with_word(self, word: usize) -> Self {
        Self { caller: self.caller ^ (word as u32).wrapping_mul(WORD_FACTOR) as usize, ..self }
    }
}

/// What the lower half of such a word is multiplied with.
pub const WORD_FACTOR: u32 = 0x85EB_CA6B;

static NOWHERE: usize = 0;

/// Where a call's return address lies: all that an entry point needs to hand on, read by who wants to know.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct ReturnSlot(*const usize);

impl ReturnSlot {
    /// Of a call that came from nowhere in particular.
    pub const NONE: Self = Self(&raw const NOWHERE);

    /// The return address; 0 for [`ReturnSlot::NONE`].
    #[inline(always)]
    pub fn caller(self) -> usize {
        // SAFETY: but for `NONE`, only the entry points of `heap/malloc` make one: it is their stack pointer as they were called,
        // and the call has not returned.
        unsafe { *self.0 }
    }

    /// The call that asks for so many bytes.
    #[inline(always)]
    pub fn call_for(self, size: usize) -> Call {
        Call { size, caller: self.caller(), stack: self.0.addr() + size_of::<usize>() }
    }
}
