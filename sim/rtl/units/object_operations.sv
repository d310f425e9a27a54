// What an operation finds in an arena's header and changes in it: the lowest free object and its address; the
// object at an address, and the bitmap without it; the bypass counter after a free and after an access. No
// state: it is the second cycle of a hit, and the same for a header that a free has fetched.
module object_operations (
    input memento::class_t               size_class,
    input logic                   [63:0] argument,     // the address
    input memento::virtual_page_t        arena,
    input memento::bitmap_t              bitmap,
    input memento::bypass_t              counter,
    input logic                          is_located,   // its page in its arena is known, from `arena_of`
    input logic                   [ 5:0] located_page,

    output logic                    has_free,
    output logic             [47:0] free_address,
    output memento::bitmap_t        with_object,
    output logic                    becomes_full,

    output logic             holds,           // the address is in this arena
    output logic             is_object,       // an object begins there
    output logic             is_allocated,
    output memento::bitmap_t without_object,
    output logic             becomes_empty,
    output memento::bypass_t after_free,

    output logic             line_is_new,  // no access has reached it
    output memento::bypass_t accessed,     // the counter after this one
    output memento::bypass_t on_leaving    // and when the arena leaves the HOT
);
  memento::index_t free_index;
  memento::unit_t  free_place;
  find_first #(
      .WIDTH(memento::OBJECTS)
  ) search (
      .bits (~bitmap),
      .found(has_free),
      .index(free_index)
  );
  assign with_object = bitmap | memento::FIRST_OBJECT << free_index;
  assign becomes_full = &with_object;
  assign free_place = memento::HEADER_UNITS + {7'b0, free_index} * {8'b0, memento::object_units(size_class)};
  assign free_address = {arena, 12'b0} + {30'b0, free_place, 3'b0};

  // The address' page, counted from the arena's first.
  logic [memento::CLASS_PAGE_BITS:0] distance;
  logic [5:0] page;
  assign distance = {1'b0, argument[memento::CLASS_BIT-1:12]}
      - {1'b0, arena[memento::CLASS_PAGE_BITS-1:0]};
  assign holds = argument[63:memento::CLASS_BIT] == {16'b0, arena[35:memento::CLASS_PAGE_BITS]}
      && distance < {{memento::CLASS_PAGE_BITS-5{1'b0}}, memento::arena_pages(size_class)};
  assign page = is_located ? located_page : distance[5:0];

  logic begins;
  memento::index_t index;
  object_index by_place (
      .size_class,
      .place({page, argument[11:3]}),
      .index,
      .is_object(begins)
  );
  assign is_object = begins && argument[2:0] == 0;
  assign is_allocated = bitmap[index];
  assign without_object = bitmap & ~(memento::FIRST_OBJECT << index);
  assign becomes_empty = without_object == 0;

  bypass_counter bypass (
      .size_class,
      .bitmap,
      .counter,
      .index,
      .line  ({page, argument[11:6]}),
      .is_new(line_is_new),
      .after_free,
      .on_leaving
  );
  assign accessed = {page[4:0], argument[11:6]};
endmodule
