// The baseline with marks: the simulator sees when Go's runtime allocates and frees (Table 2), and every object's size and
// lifetime (Fig. 2, 3). An object is freed when the sweep finds it dead; the sweep of a span is the work of its frees.

package runtime

// Marks for the simulator; see marks_software_amd64.s.
func mementoMarkDead(start uintptr)
func mementoMarkMallocEnter(size uintptr)
func mementoMarkMallocLeave(address uintptr)
func mementoMarkFreeEnter(address uintptr)
func mementoMarkFreeLeave()

var mementoSize uintptr // of the latest allocation

// Sweeps a span. An allocation that does it on its way is left meanwhile.
func mementoMarkSweep(sl *sweepLocked, preserve bool) bool {
	isInMalloc := getg().m.mallocing != 0
	size := mementoSize
	if isInMalloc {
		mementoMarkMallocLeave(0)
	}
	mementoMarkDead(sl.mspan.base())
	mementoMarkFreeEnter(0)
	freed := sl.mementoSweep(preserve)
	mementoMarkFreeLeave()
	if isInMalloc {
		mementoMarkMallocEnter(size)
	}
	return freed
}

// The dead objects of the span that starts at this address.
func mementoFindDead(start uintptr) {
	s := spanOf(start)
	marked, allocated := s.markBitsForBase(), s.allocBitsForIndex(0)
	for i := uintptr(0); i < uintptr(s.nelems); i++ {
		if !marked.isMarked() && (allocated.index < uintptr(s.freeindex) || allocated.isMarked()) {
			object := s.base() + i*s.elemsize
			// A block of tiny objects dies with all of them, wherever in it they are.
			last := object
			if s.spanclass == tinySpanClass {
				last += maxTinySize - 1
			}
			for ; object <= last; object++ {
				mementoMarkFreeEnter(object)
				mementoMarkFreeLeave()
			}
		}
		marked.advance()
		allocated.advance()
	}
}
