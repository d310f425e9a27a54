// Objects of up to 512 bytes from Memento's arenas, for a Go runtime whose collector does not run (GOGC=off: functions end
// before it would, §2.2). Nothing is freed, so arenas are used in order, object after object; memory is zero when it is
// new, as Go wants it. Layout and marks are those of sim/shim; a P is a lane.

package runtime

import "unsafe"

const (
	mementoLargest     = 512
	mementoStart       = 0x600000000000
	mementoClassShift  = 27
	mementoLaneShift   = mementoClassShift + 6
	mementoLanes       = 32
	mementoRegionBytes = mementoLanes << mementoLaneShift
	mementoObjects     = 256
	mementoHeader      = 64
	mementoPage        = 4096
	mementoAhead       = mementoPage
)

type mementoClass struct {
	next, end, populated uintptr // the next object, where its arena's objects end, memory that is there
	arenas               uintptr // where the next arena will be
}

var mementoClasses [mementoLanes][64]mementoClass
var mementoState uint8 // 0 before the first object, 1 open, 2 refused

// Marks for the simulator; see memento_amd64.s.
func mementoMarkBegin()
func mementoMarkAlloc(size, address uintptr)
func mementoMarkRegion(start, end uintptr)

func mementoOpen() {
	mementoState = 2
	const noReserve, fixedNoReplace = 0x4000, 0x100000
	p, err := mmap(unsafe.Pointer(uintptr(mementoStart)), mementoRegionBytes, _PROT_READ|_PROT_WRITE, _MAP_ANON|_MAP_PRIVATE|noReserve|fixedNoReplace, -1, 0)
	if err != 0 || uintptr(p) != mementoStart {
		println("memento: cannot reserve addresses: this process allocates in software")
		return
	}
	const noHugePage = 15
	madvise(p, mementoRegionBytes, noHugePage)
	for lane := range mementoClasses {
		for class := range mementoClasses[lane] {
			c := &mementoClasses[lane][class]
			c.arenas = mementoStart + uintptr(lane)<<mementoLaneShift + uintptr(class)<<mementoClassShift + uintptr(class/2)*mementoPage
			c.populated = c.arenas
		}
	}
	mementoState = 1
	mementoMarkRegion(mementoStart, mementoStart+mementoRegionBytes+1)
}

// The object's address, or nil: then Go's own allocator has to do it.
func mementoAlloc(size uintptr) unsafe.Pointer {
	if mementoState != 1 {
		if mementoState == 0 {
			mementoOpen()
		}
		if mementoState != 1 {
			return nil
		}
	}
	mp := acquirem()
	lane := uintptr(0)
	if mp.p != 0 {
		lane = uintptr(mp.p.ptr().id)
	}
	if lane >= mementoLanes {
		releasem(mp)
		return nil
	}
	mementoMarkBegin()
	class := (size - 1) / 8
	c := &mementoClasses[lane][class]
	if c.next == c.end {
		mementoArena(c, class, lane)
	}
	object := c.next
	if object != 0 {
		c.next += (class + 1) * 8
	}
	mementoMarkAlloc(size|lane<<32, object)
	releasem(mp)
	return unsafe.Pointer(object)
}

func mementoArena(c *mementoClass, class, lane uintptr) {
	objects := (class + 1) * 8 * mementoObjects
	bytes := (mementoHeader + objects + mementoPage - 1) &^ (mementoPage - 1)
	limit := mementoStart + lane<<mementoLaneShift + (class+1)<<mementoClassShift
	arena := c.arenas
	c.next, c.end = 0, 0
	if arena+bytes > limit {
		return
	}
	if arena+bytes > c.populated {
		ahead := c.populated + mementoAhead
		if ahead < arena+bytes {
			ahead = arena + bytes
		}
		if ahead > limit {
			ahead = limit
		}
		const populateWrite = 23
		if madvise(unsafe.Pointer(c.populated), ahead-c.populated, populateWrite) != 0 {
			return
		}
		c.populated = ahead
	}
	c.arenas = arena + bytes
	c.next = arena + mementoHeader
	c.end = c.next + objects
}

// Whether an object is Memento's: it has no span, and no finalizer will run for it.
func mementoHolds(p uintptr) bool {
	return p-mementoStart < mementoRegionBytes
}
