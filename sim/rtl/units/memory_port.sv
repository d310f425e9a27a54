// What each state of the object allocator asks of memory: headers of arenas, and a class's list heads in the
// thread's block. An arena that is written has its new links and its bypass counter in the same write.
module memory_port (
    input memento::state_t         state,
    // verilator lint_off UNUSEDSIGNAL
    input memento::entry_t         row,
    input memento::header_t        header,        // the one that a free has fetched
    // verilator lint_on UNUSEDSIGNAL
    input memento::physical_page_t other,         // and where it is
    input memento::physical_page_t block,
    input logic                    is_replacing,

    // The header after a free, or that of a row which leaves the HOT.
    input memento::bitmap_t without_object,
    input memento::bypass_t after_free,
    input memento::bypass_t on_leaving,
    input logic             was_full,
    input logic             becomes_empty,

    input logic                       link_write,
    input memento::memory_operation_t link_operation,
    input memento::physical_page_t    link_page,
    input memento::physical_page_t    link_value,

    output logic                       memory_request,
    output memento::memory_operation_t memory_operation,
    output memento::physical_page_t    memory_page,
    output memento::header_t           memory_header
);
  always_comb begin
    memory_request = 1'b1;
    memory_operation = memento::WRITE_HEADER;
    memory_page = row.page;
    memory_header = {row.arena, row.bitmap, on_leaving, memento::NO_PAGE, memento::NO_PAGE};
    case (state)
      memento::LOAD_LISTS: memory_operation = memento::READ_LISTS;
      memento::FLUSH_LISTS: memory_operation = memento::WRITE_LISTS;
      memento::LOAD_HEADER: begin
        memory_operation = memento::READ_HEADER;
        memory_page = is_replacing ? row.available : row.page;
      end
      memento::WRITE_BACK: memory_header.next = row.full;
      memento::FLUSH_HEADER: ;
      memento::FETCH: begin
        memory_operation = memento::READ_HEADER;
        memory_page = other;
      end
      memento::STORE: begin
        memory_page = other;
        memory_header = {
          header.arena,
          without_object,
          after_free,
          was_full ? memento::NO_PAGE : header.prev,
          was_full ? row.available : header.next
        };
        if (becomes_empty) memory_header = '0;
      end
      memento::LINK: begin
        memory_request = link_write;
        memory_operation = link_operation;
        memory_page = link_page;
        memory_header.prev = link_value;
        memory_header.next = link_value;
      end
      default: memory_request = 1'b0;
    endcase
    if (state == memento::LOAD_LISTS || state == memento::FLUSH_LISTS) memory_page = block;
  end
endmodule
