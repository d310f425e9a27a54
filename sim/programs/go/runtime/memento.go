// Memento in Go's runtime (§4, §5): objects of up to 512 bytes come from obj-alloc, and the collector's sweep gives them back
// by obj-free. These objects have no span. Go's data of an object in its span is kept here, beside the arenas: whether
// it has pointers, and the collector's mark. A P is a lane.

package runtime

import "unsafe"

// Marks for the simulator; see marks_amd64.s.
func mementoMarkRegion(start, end uintptr)
func mementoOpenUncharged()
func mementoObjAlloc(size uintptr) (object unsafe.Pointer, refilled uintptr)
func mementoObjFree(object uintptr)

var mementoState uint8 // 0 before the first object, 1 open, 2 refused
var mementoSwept bool  // whether an object may have been freed, so that memory is not zero as new memory is

func mementoOpen() {
	mementoState = 2
	const noReserve, fixedNoReplace, noHugePage = 0x4000, 0x100000, 15
	reserve := func(start, bytes uintptr) bool {
		p, err := mmap(unsafe.Pointer(start), bytes, _PROT_READ|_PROT_WRITE, _MAP_ANON|_MAP_PRIVATE|noReserve|fixedNoReplace, -1, 0)
		if err != 0 || uintptr(p) != start {
			println("memento: cannot reserve addresses: this process allocates in software")
			return false
		}
		madvise(p, bytes, noHugePage)
		return true
	}
	if !reserve(mementoStart, mementoRegionBytes) || !reserve(mementoNotesStart, mementoNotesBytes) {
		return
	}
	mementoOpenArenas()
	mementoState = 1
	const eager = 1
	mementoMarkRegion(mementoStart, mementoStart+mementoRegionBytes+eager)
}

// The side of this process: 0 is Go's own allocator, 1 Memento, whose instruction takes the place of the call, and 2 Memento in a
// function that is called. Where the collector runs it is that, since the function has work of its own then.
func mementoChoose() (side uintptr) {
	if mementoVariable("MEMENTO=") != "1" {
		return 0
	}
	if mementoVariable("GOGC=") == "off" {
		return 1
	}
	return 2
}

// Of the process's environment, which the runtime has not read yet: the value behind this name and its sign.
func mementoVariable(name string) string {
	for i := argc + 1; argv_index(argv, i) != nil; i++ {
		s := gostringnocopy(argv_index(argv, i))
		if len(s) >= len(name) && s[:len(name)] == name {
			return s[len(name):]
		}
	}
	return ""
}

func mementoBeneath(size uintptr, typ *_type, needzero bool) unsafe.Pointer

// mallocgc by Memento.
func mementoMalloc(size uintptr, typ *_type, needzero bool) unsafe.Pointer {
	if size-1 < mementoLargest {
		if x := mementoAlloc(size, typ, needzero); x != nil {
			return x
		}
	}
	return mementoBeneath(size, typ, needzero)
}

// For a size of 1 to 512 bytes: the object's address, or nil: then Go's own allocator has to do it.
func mementoAlloc(size uintptr, typ *_type, needzero bool) unsafe.Pointer {
	if mementoState != 1 {
		if mementoState == 0 {
			mementoOpenUncharged()
		}
		if mementoState != 1 {
			return nil
		}
	}
	mp := acquirem()
	x, refilled := mementoObjAlloc(size)
	if x == nil {
		releasem(mp)
		return nil
	}
	if mementoHasPointers(typ) {
		mementoNotePointers(uintptr(x))
	}
	if gcphase != _GCoff {
		mementoNew(uintptr(x))
	}
	if needzero && mementoSwept {
		memclrNoHeapPointers(x, (size+mementoStep-1)&^(mementoStep-1))
	}
	releasem(mp)
	if refilled != 0 {
		mementoPace(refilled)
	}
	return x
}

// Another arena is being filled: the collector's pacer counts it as it counts a span, and may begin a collection.
func mementoPace(bytes uintptr) {
	gcController.update(int64(bytes), 0)
	if t := (gcTrigger{kind: gcTriggerHeap}); t.test() {
		gcStart(t)
	}
}

// A P has its arenas for itself (§4).
func mementoLane(mp *m) uintptr {
	lane := uintptr(0)
	if mp.p != 0 {
		lane = uintptr(mp.p.ptr().id)
	}
	if lane >= mementoLanes {
		throw("memento: more than 32 Ps: set GOMAXPROCS")
	}
	return lane
}

// Whether an object is Memento's: it has no span, and no finalizer will run for it.
func mementoHolds(p uintptr) bool {
	return p-mementoStart < mementoRegionBytes
}
