#include "funcdata.h"
#include "textflag.h"

// One program for both sides, as sim/shim/redirect.h has it: mallocgc is a jump to Go's own allocator or to Memento's, which the
// simulator charges on neither side. Functions begin at multiples of 32 bytes, so that none of these is on two pages.
#define MARK(code) BYTE $0x0f; BYTE $0x1f; BYTE $0x84; BYTE $0x00; BYTE $code; BYTE $0x00; BYTE $0x4d; BYTE $0x4d

DATA ·mementoTarget(SB)/8, $·mementoFirstCall<ABIInternal>(SB)
GLOBL ·mementoTarget(SB), NOPTR, $8

// At a call, R12 holds nothing.
TEXT ·mallocgc<ABIInternal>(SB),NOSPLIT|NOFRAME,$0-0
	MARK(0x17)
	MOVQ	·mementoTarget(SB), R12
	JMP	R12

// The first allocation of the process chooses.
TEXT ·mementoFirstCall<ABIInternal>(SB),NOSPLIT,$32-0
	NO_LOCAL_POINTERS
	MOVQ	AX, 8(SP)
	MOVQ	BX, 16(SP)
	MOVQ	CX, 24(SP)
	MARK(0x11)
	CALL	·mementoChoose<ABIInternal>(SB)
	LEAQ	·mementoSoftware<ABIInternal>(SB), R12
	CMPQ	AX, $0
	JEQ	chosen
	LEAQ	·mementoReplaced<ABIInternal>(SB), R12
	CMPQ	AX, $1
	JEQ	chosen
	LEAQ	·mementoMalloc<ABIInternal>(SB), R12
chosen:
	MOVQ	R12, ·mementoTarget(SB)
	MARK(0x14)
	MOVQ	8(SP), AX
	MOVQ	16(SP), BX
	MOVQ	24(SP), CX
	CALL	·mallocgc<ABIInternal>(SB)
	RET

// The call of mallocgc is the instruction's, for as large objects as it serves.
TEXT ·mementoReplaced<ABIInternal>(SB),NOSPLIT|NOFRAME,$0-0
	MARK(0x18)
	LEAQ	-1(AX), R12
	CMPQ	R12, $512
	JCC	large
	JMP	·mementoSmall<ABIInternal>(SB)
large:
	JMP	·mementoBeneath<ABIInternal>(SB)

// Where the instruction refuses, Go's own allocator returns to the program and not here: its call is charged again, and a return
// that no call was charged for would be predicted wrong, with all that follow. Below 24(SP) are the called function's slots.
TEXT ·mementoSmall<ABIInternal>(SB),NOSPLIT,$48-0
	NO_LOCAL_POINTERS
	MOVQ	AX, 24(SP)
	MOVQ	BX, 32(SP)
	MOVQ	CX, 40(SP)
	CALL	·mementoAlloc<ABIInternal>(SB)
	CMPQ	AX, $0
	JEQ	refused
	RET
refused:
	MOVQ	24(SP), AX
	MOVQ	32(SP), BX
	MOVQ	40(SP), CX
	RET	·mementoBeneath<ABIInternal>(SB)

// The call is one of Go's own allocator after all.
TEXT ·mementoBeneath<ABIInternal>(SB),NOSPLIT|NOFRAME,$0-0
	MARK(0x19)
	JMP	·mementoSoftware<ABIInternal>(SB)
