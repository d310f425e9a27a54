// The arenas in memory, as sim/shim/arenas.c has them: the hardware's work, done in software and not charged. All
// pointers are uintptr: the collector does not look at them.

package runtime

import "unsafe"

const (
	mementoLargest     = 512
	mementoStep        = 8
	mementoClassCount  = 64
	mementoStart       = 0x600000000000
	mementoClassShift  = 26
	mementoLaneShift   = mementoClassShift + 6
	mementoLanes       = 32
	mementoRegionBytes = mementoLanes << mementoLaneShift
	mementoObjects     = 256
	mementoHeaderBytes = 64
	mementoPage        = 4096
	mementoAhead       = mementoPage
)

type mementoHeader struct {
	address    uintptr
	bitmap     [4]uint64
	bypass     uint64 // used by the simulator alone
	prev, next uintptr
}

type mementoClass struct {
	current, available, full uintptr
	start, next, populated   uintptr // of the first arena, of the next one, and where memory that is there ends
	noted, notes             uintptr // the arena that objects were last noted in, and its notes
}

var mementoClasses [mementoLanes][mementoClassCount]mementoClass
var mementoInUse uint64 // bytes of arenas

// The lowest bit that is set; see bits_amd64.s.
func mementoFirst(word uint64) (bit uintptr)

func mementoArenaBytes(class uintptr) uintptr {
	return (mementoHeaderBytes + (class+1)*mementoStep*mementoObjects + mementoPage - 1) &^ (mementoPage - 1)
}

func mementoArenaAt(arena uintptr) *mementoHeader {
	return (*mementoHeader)(unsafe.Pointer(arena))
}

func (h *mementoHeader) isFull() bool {
	return h.bitmap[0]&h.bitmap[1]&h.bitmap[2]&h.bitmap[3] == ^uint64(0)
}

func (h *mementoHeader) isEmpty() bool {
	return h.bitmap[0]|h.bitmap[1]|h.bitmap[2]|h.bitmap[3] == 0
}

func mementoOpenArenas() {
	for lane := range mementoClasses {
		for class := range mementoClasses[lane] {
			c := &mementoClasses[lane][class]
			c.start = mementoStart + uintptr(lane)<<mementoLaneShift + uintptr(class)<<mementoClassShift + uintptr(class/2)*mementoPage
			c.next, c.populated = c.start, c.start
		}
	}
	mementoOpenNotes()
}

// obj-alloc: the lowest free object of the class's arena, or 0; if another arena follows, how much is free there; and
// the mark's operands.
func mementoTake(size uintptr) (object, refilled, operands uintptr) {
	lane, class := mementoLane(getg().m), (size-1)/mementoStep
	operands = size | lane<<32
	c := &mementoClasses[lane][class]
	if c.current == 0 || mementoArenaAt(c.current).isFull() {
		if refilled = c.replace(lane, class); refilled == 0 {
			return 0, 0, operands
		}
	}
	h := mementoArenaAt(c.current)
	word := uintptr(0)
	for h.bitmap[word] == ^uint64(0) {
		word++
	}
	bit := mementoFirst(^h.bitmap[word])
	h.bitmap[word] |= 1 << bit
	object = c.current + mementoHeaderBytes + (word*64+bit)*(class+1)*mementoStep
	if h.isFull() { // the next one is loaded eagerly
		refilled += c.replace(lane, class)
	}
	return object, refilled, operands
}

// The class's next arena; the full one goes to the full list. How many bytes are free in it: 0 if there is none.
func (c *mementoClass) replace(lane, class uintptr) uintptr {
	arena := c.available
	if arena != 0 {
		mementoUnlink(&c.available, arena)
	} else if arena = c.newArena(lane, class); arena == 0 {
		return 0
	}
	if c.current != 0 {
		mementoPush(&c.full, c.current)
	}
	c.current = arena
	free := uintptr(0)
	for _, word := range mementoArenaAt(arena).bitmap {
		for left := ^word; left != 0; left &= left - 1 {
			free++
		}
	}
	return free * (class + 1) * mementoStep
}

// All of an arena's pages are there before the program sees it: the page allocator charges their cost.
func (c *mementoClass) newArena(lane, class uintptr) uintptr {
	limit := mementoStart + lane<<mementoLaneShift + (class+1)<<mementoClassShift
	arena, end := c.next, c.next+mementoArenaBytes(class)
	if end > limit {
		return 0
	}
	if end > c.populated {
		from, to := c.populated, end
		if from < arena {
			from = arena
		}
		if to < from+mementoAhead {
			to = from + mementoAhead
		}
		if to > limit {
			to = limit
		}
		const populateWrite = 23
		if madvise(unsafe.Pointer(from), to-from, populateWrite) != 0 {
			return 0
		}
		c.populated = to
	}
	c.next = end
	mementoInUse += uint64(end - arena)
	mementoArenaAt(arena).address = arena
	mementoNotesOf(lane, class, mementoArenaNumber(arena-c.start, class)).present = true
	return arena
}

// obj-free of an object that is allocated; and the mark's operands.
func mementoGive(object uintptr) (same, own uintptr) {
	own = mementoLane(getg().m)
	lane, class := mementoPlace(object)
	c := &mementoClasses[lane][class]
	arena := c.start + mementoArenaNumber(object-c.start, class)*mementoArenaBytes(class)
	index := (object - arena - mementoHeaderBytes) / ((class + 1) * mementoStep)
	h := mementoArenaAt(arena)
	wasFull := h.isFull()
	h.bitmap[index/64] &^= 1 << (index % 64)
	if arena == c.current {
		return object, own
	}
	if wasFull {
		mementoUnlink(&c.full, arena)
		mementoPush(&c.available, arena)
	}
	if h.isEmpty() {
		mementoUnlink(&c.available, arena)
		*mementoNotesOf(lane, class, mementoArenaNumber(arena-c.start, class)) = mementoNotes{}
		mementoInUse -= uint64(mementoArenaBytes(class))
		const dontNeed = 4
		madvise(unsafe.Pointer(arena), mementoArenaBytes(class), dontNeed)
	}
	return object, own
}

func mementoPush(list *uintptr, arena uintptr) {
	h := mementoArenaAt(arena)
	h.prev, h.next = 0, *list
	if *list != 0 {
		mementoArenaAt(*list).prev = arena
	}
	*list = arena
}

func mementoUnlink(list *uintptr, arena uintptr) {
	h := mementoArenaAt(arena)
	if h.prev != 0 {
		mementoArenaAt(h.prev).next = h.next
	} else {
		*list = h.next
	}
	if h.next != 0 {
		mementoArenaAt(h.next).prev = h.prev
	}
	h.prev, h.next = 0, 0
}
