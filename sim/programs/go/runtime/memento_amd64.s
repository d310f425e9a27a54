#include "textflag.h"

// The marks of sim/shim/marks.h: a nop whose constant is 0x4d4d0000 + code, arguments in DI and SI.
#define MARK(code) BYTE $0x0f; BYTE $0x1f; BYTE $0x84; BYTE $0x00; BYTE $code; BYTE $0x00; BYTE $0x4d; BYTE $0x4d

TEXT ·mementoMarkBegin(SB),NOSPLIT,$0-0
	MARK(0x11)
	RET

TEXT ·mementoMarkAlloc(SB),NOSPLIT,$0-16
	MOVQ	size+0(FP), DI
	MOVQ	address+8(FP), SI
	MARK(0x12)
	RET

TEXT ·mementoMarkRegion(SB),NOSPLIT,$0-16
	MOVQ	start+0(FP), DI
	MOVQ	end+8(FP), SI
	MARK(0x10)
	RET
