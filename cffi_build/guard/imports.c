/* Replaces imported functions of the running program: the dynamic linker keeps their addresses in a
 * table of the program's, one slot a function, which its relocations name. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "imports.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define IS_SLOT(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#elif defined(__aarch64__)
#define IS_SLOT(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#else
#error "The relocations of this processor are not known here"
#endif

/* The program as it lies in memory: symbols, their names, two tables of relocations. */
struct program {
    uintptr_t base;
    uintptr_t sealed_start, sealed_end; /* pages made read-only once the tables were filled */
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *tables[2];
    size_t lengths[2];
};

struct replacing {
    const char *name;
    uintptr_t replacement;
    int places;
};

/* glibc has turned the addresses in a dynamic section into absolute ones, other linkers have not. */
static uintptr_t absolute(const struct program *program, ElfW(Addr) address)
{
    return address < program->base ? program->base + address : address;
}

static void note(struct program *program, const ElfW(Dyn) *entry)
{
    const uintptr_t address = absolute(program, entry->d_un.d_ptr);
    const size_t count = entry->d_un.d_val / sizeof(ElfW(Rela));
    switch (entry->d_tag) {
    case DT_SYMTAB:
        program->symbols = (const ElfW(Sym) *)address;
        break;
    case DT_STRTAB:
        program->names = (const char *)address;
        break;
    case DT_JMPREL:
        program->tables[0] = (const ElfW(Rela) *)address;
        break;
    case DT_PLTRELSZ:
        program->lengths[0] = count;
        break;
    case DT_RELA:
        program->tables[1] = (const ElfW(Rela) *)address;
        break;
    case DT_RELASZ:
        program->lengths[1] = count;
        break;
    default:
        break;
    }
}

static uintptr_t page_of(uintptr_t address)
{
    return address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static void survey(struct program *program, const struct dl_phdr_info *info)
{
    program->base = info->dlpi_addr;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        const uintptr_t start = program->base + header->p_vaddr;
        if (header->p_type == PT_GNU_RELRO) {
            /* Whole pages only, as the linker does it */
            program->sealed_start = page_of(start);
            program->sealed_end = page_of(start + header->p_memsz);
        }
        if (header->p_type == PT_DYNAMIC)
            for (const ElfW(Dyn) *entry = (const void *)start; entry->d_tag != DT_NULL; entry++)
                note(program, entry);
    }
}

static int write_slot(const struct program *program, uintptr_t slot, uintptr_t value)
{
    const int sealed = slot >= program->sealed_start && slot < program->sealed_end;
    void *page = (void *)page_of(slot);
    const size_t length = (size_t)sysconf(_SC_PAGESIZE);
    if (sealed && mprotect(page, length, PROT_READ | PROT_WRITE) != 0)
        return 0;
    *(volatile uintptr_t *)slot = value;
    if (sealed)
        (void)mprotect(page, length, PROT_READ); /* a page left writable does no harm */
    return 1;
}

static int replace(struct dl_phdr_info *info, size_t size, void *data)
{
    struct replacing *replacing = data;
    struct program program = { 0 };
    (void)size;
    survey(&program, info);
    for (int t = 0; t < 2 && program.symbols != NULL && program.names != NULL; t++)
        for (size_t i = 0; program.tables[t] != NULL && i < program.lengths[t]; i++) {
            const ElfW(Rela) *entry = &program.tables[t][i];
            const ElfW(Sym) *symbol = &program.symbols[ELF64_R_SYM(entry->r_info)];
            if (IS_SLOT(ELF64_R_TYPE(entry->r_info))
                && strcmp(program.names + symbol->st_name, replacing->name) == 0)
                replacing->places += write_slot(&program, program.base + entry->r_offset,
                                                replacing->replacement);
        }
    return 1; /* the program comes first; no other object is looked at */
}

int imports_replace(const char *name, uintptr_t replacement)
{
    struct replacing replacing = { .name = name, .replacement = replacement };
    dl_iterate_phdr(replace, &replacing);
    return replacing.places;
}
