#include "funcdata.h"
#include "textflag.h"

// The marks of sim/shim/marks.h: a nop whose constant is 0x4d4d0000 + code, arguments in DI and SI. Go has them in AX and BX.
#define MARK(code) BYTE $0x0f; BYTE $0x1f; BYTE $0x84; BYTE $0x00; BYTE $code; BYTE $0x00; BYTE $0x4d; BYTE $0x4d

TEXT ·mementoMarkRegion<ABIInternal>(SB),NOSPLIT,$0-16
	MOVQ	AX, DI
	MOVQ	BX, SI
	MARK(0x10)
	RET

// An operation's two marks are in one function, so that calls and returns are charged in pairs: a machine predicts returns.

// The result, in AX from then on, is the object's address.
TEXT ·mementoObjAlloc<ABIInternal>(SB),NOSPLIT,$8-0
	NO_LOCAL_POINTERS
	MARK(0x11)
	CALL	·mementoTake<ABIInternal>(SB)
	MOVQ	CX, DI
	MOVQ	AX, SI
	MARK(0x12)
	RET

TEXT ·mementoObjFree<ABIInternal>(SB),NOSPLIT,$8-0
	NO_LOCAL_POINTERS
	MARK(0x11)
	CALL	·mementoGive<ABIInternal>(SB)
	MOVQ	AX, DI
	MOVQ	BX, SI
	MARK(0x13)
	RET

// Opens the region: nothing that hardware would do.
TEXT ·mementoOpenUncharged<ABIInternal>(SB),NOSPLIT,$8-0
	NO_LOCAL_POINTERS
	MARK(0x11)
	CALL	·mementoOpen<ABIInternal>(SB)
	MARK(0x14)
	RET
