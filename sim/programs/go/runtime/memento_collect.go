// Go's collector over Memento's objects (§4, Interaction with Garbage Collection). It marks and sweeps with the world stopped.
// A pointer into the region that the collector finds comes here. An object that has pointers is scanned as the collector
// scans a stack without a map: each word that may be a pointer is one. The sweep frees unmarked objects by obj-free.

package runtime

import "unsafe"

// Of an arena's objects.
type mementoNotes struct {
	marked, pointers [4]uint64
	present          bool // the arena exists
}

// An arena's notes are in a table of its class and lane, which has room for the most arenas that there can be.
const (
	mementoNotesStart = 0x580000000000
	mementoNotesShift = 22
	mementoNotesBytes = mementoLanes * mementoClassCount << mementoNotesShift
	mementoInverse    = 24
)

// What divides by the pages of a class's arena and by its objects' size in steps: a multiplication and a shift.
var mementoInverses [mementoClassCount]struct{ pages, steps uintptr }

// Sets a bit atomically; see bits_amd64.s.
func mementoSetBit(bitmap *[4]uint64, bit uintptr) (was bool)

func mementoOpenNotes() {
	for class := range mementoInverses {
		inverses := &mementoInverses[class]
		inverses.pages = 1<<mementoInverse/(mementoArenaBytes(uintptr(class))/mementoPage) + 1
		inverses.steps = 1<<mementoInverse/(uintptr(class)+1) + 1
	}
}

// The lane and the class of an address in the region.
func mementoPlace(p uintptr) (lane, class uintptr) {
	offset := p - mementoStart
	return offset >> mementoLaneShift % mementoLanes, offset >> mementoClassShift % mementoClassCount
}

// Which of its class an arena is; also of an address in it.
func mementoArenaNumber(offset, class uintptr) uintptr {
	return offset / mementoPage * mementoInverses[class].pages >> mementoInverse
}

func mementoNotesOf(lane, class, number uintptr) *mementoNotes {
	table := uintptr(mementoNotesStart) + (lane*mementoClassCount+class)<<mementoNotesShift
	return (*mementoNotes)(unsafe.Pointer(table + number*unsafe.Sizeof(mementoNotes{})))
}

// The notes of the object that an address of the region is in, its number, its address and its size; nil: of none.
func mementoFind(p uintptr) (notes *mementoNotes, index, object, size uintptr) {
	lane, class := mementoPlace(p)
	c := &mementoClasses[lane][class]
	if p < c.start || p >= c.next {
		return nil, 0, 0, 0
	}
	number := mementoArenaNumber(p-c.start, class)
	arena := c.start + number*mementoArenaBytes(class)
	size = (class + 1) * mementoStep
	index = (p - arena - mementoHeaderBytes) / mementoStep * mementoInverses[class].steps >> mementoInverse
	notes = mementoNotesOf(lane, class, number)
	if !notes.present || p < arena+mementoHeaderBytes || index >= mementoObjects {
		return nil, 0, 0, 0
	}
	return notes, index, arena + mementoHeaderBytes + index*size, size
}

// A new object has pointers.
func mementoNotePointers(object uintptr) {
	lane, class := mementoPlace(object)
	c := &mementoClasses[lane][class]
	body := object - c.noted - mementoHeaderBytes
	if body >= (class+1)*mementoStep*mementoObjects {
		number := mementoArenaNumber(object-c.start, class)
		c.noted = c.start + number*mementoArenaBytes(class)
		c.notes = uintptr(unsafe.Pointer(mementoNotesOf(lane, class, number)))
		body = object - c.noted - mementoHeaderBytes
	}
	index := body / mementoStep * mementoInverses[class].steps >> mementoInverse
	(*mementoNotes)(unsafe.Pointer(c.notes)).pointers[index/64%4] |= 1 << (index % 64)
}

// A new object during a collection is marked: it has nothing to scan yet.
func mementoNew(object uintptr) {
	notes, index, _, _ := mementoFind(object)
	mementoSetBit(&notes.marked, index)
}

// The collector has found a pointer into the region.
//
//go:nowritebarrierrec
func mementoMark(p uintptr) {
	if gcphase == _GCoff {
		return
	}
	notes, index, object, size := mementoFind(p)
	if notes == nil || mementoSetBit(&notes.marked, index) {
		return
	}
	gcw := &getg().m.p.ptr().gcw
	if notes.pointers[index/64]>>(index%64)&1 != 0 {
		mementoPut(gcw, object)
	} else {
		gcw.bytesMarked += uint64(size)
	}
}

// An object of the region comes from the collector's queue.
//
//go:nowritebarrier
func mementoScan(object uintptr, gcw *gcWork) {
	_, class := mementoPlace(object)
	size := (class + 1) * mementoStep
	scanConservative(object, size, nil, gcw, nil)
	gcw.bytesMarked += uint64(size)
	gcw.heapScanWork += int64(size)
}

// The world is stopped, and all that can be reached is marked.
func mementoSweep() {
	if mementoState != 1 {
		return
	}
	for lane := uintptr(0); lane < mementoLanes; lane++ {
		for class := uintptr(0); class < mementoClassCount; class++ {
			c := &mementoClasses[lane][class]
			number := uintptr(0)
			for arena := c.start; arena < c.next; arena += mementoArenaBytes(class) {
				if notes := mementoNotesOf(lane, class, number); notes.present {
					mementoSweepArena(notes, class, arena)
				}
				number++
			}
		}
	}
	mementoSwept = true
}

// A header is memory as any other, so its bitmap can be read (§4, Multi-core Support). It is read before the first free: with
// its last object the arena is freed.
func mementoSweepArena(notes *mementoNotes, class, arena uintptr) {
	dead := mementoArenaAt(arena).bitmap
	for word := range dead {
		dead[word] &^= notes.marked[word]
		notes.marked[word] = 0
		notes.pointers[word] &^= dead[word]
	}
	for word, left := range dead {
		for ; left != 0; left &= left - 1 {
			index := uintptr(word)*64 + mementoFirst(left)
			mementoObjFree(arena + mementoHeaderBytes + index*(class+1)*mementoStep)
		}
	}
}
