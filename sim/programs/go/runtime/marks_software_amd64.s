#include "funcdata.h"
#include "textflag.h"

// Marks as in marks_amd64.s, round the runtime's own allocator.
#define MARK(code) BYTE $0x0f; BYTE $0x1f; BYTE $0x84; BYTE $0x00; BYTE $code; BYTE $0x00; BYTE $0x4d; BYTE $0x4d

// The search for the objects is not charged.
TEXT ·mementoMarkDead<ABIInternal>(SB),NOSPLIT,$8-0
	NO_LOCAL_POINTERS
	MARK(0x11)
	CALL	·mementoFindDead<ABIInternal>(SB)
	MARK(0x14)
	RET

TEXT ·mementoMarkMallocEnter<ABIInternal>(SB),NOSPLIT,$0-8
	MOVQ	AX, DI
	MARK(0x20)
	RET

TEXT ·mementoMarkMallocLeave<ABIInternal>(SB),NOSPLIT,$0-8
	MOVQ	AX, DI
	MARK(0x21)
	RET

TEXT ·mementoMarkFreeEnter<ABIInternal>(SB),NOSPLIT,$0-8
	MOVQ	AX, DI
	MARK(0x22)
	RET

TEXT ·mementoMarkFreeLeave<ABIInternal>(SB),NOSPLIT,$0-0
	MARK(0x23)
	RET
