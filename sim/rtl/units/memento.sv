// Sizes and types of Memento's units (Wang et al., MICRO 2023, whose sections stand in brackets). An address
// is a page and a place in it; the units keep page numbers. Where things lie in the region is as in
// sim/memento/src/layout.rs.
package memento;
  localparam int unsigned CLASSES = 64;  // size classes of 8 to 512 bytes, 8 apart [3.1]
  localparam int unsigned OBJECTS = 256;  // of an arena [3.1]
  localparam int unsigned BYPASS_BITS = 11;  // [3.3]
  localparam int unsigned UNIT_BITS = 15;  // a place in an arena of 33 pages, in units of 8 bytes
  localparam int unsigned VIRTUAL_PAGE_BITS = 36;  // of 48-bit addresses
  localparam int unsigned CLASS_PAGE_BITS = 14;  // of a class's range of a lane: 64 MiB
  localparam int unsigned PHYSICAL_PAGE_BITS = 28;  // of 40-bit addresses, as in bench/sim/cost

  typedef logic [$clog2(CLASSES)-1:0] class_t;
  typedef logic [$clog2(OBJECTS)-1:0] index_t;
  typedef logic [4:0] lane_t;
  // Where the class and the lane stand in an address.
  localparam int unsigned CLASS_BIT = 12 + CLASS_PAGE_BITS;
  localparam int unsigned LANE_BIT = CLASS_BIT + $clog2(CLASSES);
  localparam int unsigned REGION_BIT = LANE_BIT + 5;
  // MRS: where 32 lanes of 64 classes begin, at a multiple of their size.
  typedef logic [47:REGION_BIT] region_t;
  typedef logic [CLASS_PAGE_BITS-1:0] class_page_t;  // a page of a class's range
  typedef logic [VIRTUAL_PAGE_BITS-1:0] virtual_page_t;
  typedef logic [PHYSICAL_PAGE_BITS-1:0] physical_page_t;  // 0: none
  typedef logic [OBJECTS-1:0] bitmap_t;  // a set bit: the object is allocated
  typedef logic [BYPASS_BITS-1:0] bypass_t;
  typedef logic [UNIT_BITS-1:0] unit_t;

  localparam unit_t HEADER_UNITS = 8;
  localparam class_t LAST_CLASS = '1;
  localparam physical_page_t NO_PAGE = 0;
  localparam bitmap_t NO_OBJECT = 0;
  localparam bitmap_t FIRST_OBJECT = 1;
  localparam bypass_t NO_LINE = 0;

  // An arena's header in memory (Fig. 5a).
  typedef struct packed {
    virtual_page_t  arena;
    bitmap_t        bitmap;
    bypass_t        bypass;
    physical_page_t prev;
    physical_page_t next;
  } header_t;

  // A row of the HOT (Fig. 5b). Its arena is in no list, so prev and next need no place. `dirty`: it differs
  // from the header in memory.
  typedef struct packed {
    logic           dirty;
    physical_page_t page;
    physical_page_t available;
    physical_page_t full;
    virtual_page_t  arena;
    bitmap_t        bitmap;
    bypass_t        bypass;
  } entry_t;

  localparam int unsigned ENTRY_BITS = 1 + 3 * PHYSICAL_PAGE_BITS + VIRTUAL_PAGE_BITS + OBJECTS + BYPASS_BITS;

  // What a flush keeps of a row in the thread's block, besides the header.
  typedef struct packed {
    physical_page_t current;
    physical_page_t available;
    physical_page_t full;
  } lists_t;

  // A bump pointer in the AAC, and where it is kept in memory: a thread's block has one for each class.
  typedef struct packed {
    physical_page_t block;
    class_t         size_class;
    virtual_page_t  next;        // arena
  } pointer_t;
  localparam int unsigned POINTER_BITS = PHYSICAL_PAGE_BITS + $clog2(CLASSES) + VIRTUAL_PAGE_BITS;

  typedef enum logic [2:0] {
    ALLOCATE,  // obj-alloc; operand: bytes
    FREE,  // obj-free; operand: address
    TOUCH,  // a load or store; operand: address
    FLUSH,  // before another thread runs [4]
    INITIALISE,  // an arena for each class [3.1]
    DISCARD  // the thread's process has exited: rows are dropped
  } operation_t;

  typedef enum logic [3:0] {
    HIT,
    MISS,
    WRONG_SIZE,
    REGION_FULL,
    NOT_IN_REGION,
    NOT_AN_OBJECT,
    NO_ARENA,
    DOUBLE_FREE,
    NON_LOCAL  // another thread's object: nothing is done; software's batch takes it [4]
  } outcome_t;

  typedef enum logic [2:0] {
    READ_HEADER,
    WRITE_HEADER,
    WRITE_PREV,  // that field of the header alone
    WRITE_NEXT,
    READ_LISTS,  // of a class, from the thread's block
    WRITE_LISTS
  } memory_operation_t;

  // The object allocator's.
  typedef enum logic [4:0] {
    IDLE,
    EXECUTE,
    LOAD_LISTS,  // an invalid row: what the flush kept of it
    LOAD_HEADER,  // of the current arena, or of the available list's head
    WRITE_BACK,  // a full arena, which becomes the full list's head
    REQUEST_ARENA,
    LINK,
    LOCATE,  // a free that misses: its arena by division
    FIND,  // and which object of it
    TRANSLATE,  // where the arena's header is
    FETCH,
    CHECK,
    STORE,
    RETURN_ARENA,
    FLUSH_READ,
    FLUSH_ROW,
    FLUSH_HEADER,
    FLUSH_LISTS
  } state_t;

  // An object's size in units of 8 bytes.
  function automatic logic [6:0] object_units(input class_t size_class);
    object_units = {1'b0, size_class} + 7'd1;
  endfunction

  // An arena's pages: a header of 64 bytes and 256 objects, rounded up.
  function automatic logic [5:0] arena_pages(input class_t size_class);
    arena_pages = {1'b0, size_class[5:1]} + {5'b0, size_class[0]} + 6'd1;
  endfunction
endpackage
