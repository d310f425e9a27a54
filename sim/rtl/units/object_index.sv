// Which object of an arena begins at a place, if one does: the place, less the header, divided by the objects'
// size. Places are in units of 8 bytes. The size is a power of two times an odd number, and a multiple of an odd
// number is divided by a multiplication with its inverse modulo 256, the number of objects. Whether the place was
// a multiple is seen by multiplying back.
module object_index (
    input  memento::class_t size_class,
    input  memento::unit_t  place,
    output memento::index_t index,
    output logic            is_object
);
  logic [6:0] units;
  memento::unit_t in_body;
  assign units   = memento::object_units(size_class);
  assign in_body = place - memento::HEADER_UNITS;

  memento::index_t halved, inverse;
  int unsigned odd, twos, product;
  always_comb begin
    halved  = '0;
    inverse = '0;
    for (int unsigned size = 1; size <= memento::CLASSES; size++) begin
      odd  = size;
      twos = 0;
      for (int unsigned i = 0; i < 6; i++) begin
        if (odd % 2 == 0) begin
          odd  = odd / 2;
          twos = twos + 1;
        end
      end
      // Right in the low 3, 6 and 12 bits.
      product = odd;
      product = product * (2 - odd * product);
      product = product * (2 - odd * product);
      if (units == size[6:0]) begin
        halved  = in_body[twos+:8];
        inverse = product[7:0];
      end
    end
  end
  assign index = halved * inverse;
  assign is_object = place >= memento::HEADER_UNITS && {7'b0, index} * {8'b0, units} == in_body;
endmodule
