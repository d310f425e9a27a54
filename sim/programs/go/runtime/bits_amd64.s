#include "textflag.h"

// Functions that the runtime's own packages have in another place in each version of Go.

// Sets a bit of a bitmap atomically; whether it was set.
TEXT ·mementoSetBit<ABIInternal>(SB),NOSPLIT,$0-17
	LOCK
	BTSQ	BX, (AX)
	SETCS	AX
	RET

// The lowest bit that is set, if any is.
TEXT ·mementoFirst<ABIInternal>(SB),NOSPLIT,$0-16
	BSFQ	AX, AX
	RET
