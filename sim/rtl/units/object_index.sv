// Which object of an arena begins at a place, if one does: the place, less the header, divided by the
// objects' size. Places are in units of 8 bytes.
module object_index (
    input  memento::class_t size_class,
    input  memento::unit_t  place,
    output memento::index_t index,
    output logic            is_object
);
  memento::unit_t in_body, quotient;
  logic [6:0] remainder;
  assign in_body = place - memento::HEADER_UNITS;
  divide #(
      .DIVIDEND_BITS(memento::UNIT_BITS),
      .LARGEST(memento::CLASSES)
  ) by_size (
      .dividend(in_body),
      .divisor(memento::object_units(size_class)),
      .quotient,
      .remainder
  );
  assign index = quotient[7:0];
  assign is_object = place >= 8 && remainder == 0 && quotient < memento::OBJECTS[14:0];
endmodule
