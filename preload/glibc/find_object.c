/* `_dl_find_object` for the unwinder of gcc 12 and later (libgcc_eh.a), which expects glibc 2.35's.
 *
 * Unwinding happens only when a panic is caught inside this library, so a walk over the loaded
 * objects is fast enough. Layout and meaning of the result are those of the glibc manual,
 * "Dynamic Linker Introspection".
 */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>

struct find_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    ElfW(Addr) pc;
    struct find_object *out;
};

static int look(struct dl_phdr_info *object, size_t size, void *argument) {
    struct search *search = argument;
    ElfW(Addr) start = ~(ElfW(Addr))0, end = 0, frame = 0;
    int inside = 0;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        ElfW(Addr) from = object->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD) {
            ElfW(Addr) to = from + header->p_memsz;
            if (from < start) start = from;
            if (to > end) end = to;
            if (search->pc >= from && search->pc < to) inside = 1;
        } else if (header->p_type == PT_GNU_EH_FRAME) {
            frame = from;
        }
    }
    if (!inside || !frame) return 0;
    search->out->flags = 0;
    search->out->map_start = (void *)start;
    search->out->map_end = (void *)end;
    search->out->link_map = NULL;
    search->out->eh_frame = (void *)frame;
    return 1;
}

/* Under a C name of its own: newer headers declare the function, with their own struct. */
__attribute__((visibility("hidden"))) int find_object(void *pc, struct find_object *out)
    __asm__("_dl_find_object");

int find_object(void *pc, struct find_object *out) {
    struct search search = {(ElfW(Addr))pc, out};
    return dl_iterate_phdr(look, &search) ? 0 : -1;
}
