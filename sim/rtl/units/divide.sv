// Quotient and remainder of a division by 1 to LARGEST, as a multiplication by a reciprocal out of a table
// [3.2: "the arena sizes are known in advance"]. The reciprocal is 2^SHIFT / divisor, rounded up; with SHIFT
// bits as many as dividend and divisor have together, the quotient is exact.
module divide #(
    parameter int unsigned DIVIDEND_BITS = 15,
    parameter int unsigned LARGEST = 64,
    parameter int unsigned DIVISOR_BITS = $clog2(LARGEST + 1)
) (
    input  logic [DIVIDEND_BITS-1:0] dividend,
    input  logic [ DIVISOR_BITS-1:0] divisor,
    output logic [DIVIDEND_BITS-1:0] quotient,
    output logic [ DIVISOR_BITS-1:0] remainder
);
  localparam int unsigned SHIFT = DIVIDEND_BITS + DIVISOR_BITS;
  logic [SHIFT:0] reciprocal;
  // verilator lint_off UNUSEDSIGNAL
  logic [DIVIDEND_BITS+SHIFT:0] product;
  // verilator lint_on UNUSEDSIGNAL

  always_comb begin
    reciprocal = '0;
    for (int unsigned d = 1; d <= LARGEST; d++)
      if (divisor == d[DIVISOR_BITS-1:0]) reciprocal = (SHIFT + 1)'(((1 << SHIFT) + d - 1) / d);
  end

  assign product   = {{(SHIFT + 1) {1'b0}}, dividend} * {{DIVIDEND_BITS{1'b0}}, reciprocal};
  assign quotient  = product[SHIFT+:DIVIDEND_BITS];
  // Less than the divisor, so its low bits are enough.
  assign remainder = dividend[DIVISOR_BITS-1:0] - quotient[DIVISOR_BITS-1:0] * divisor;
endmodule
