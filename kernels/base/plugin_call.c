/* Writes this process's note of the current call, and words the note of another. */
#include "kernels/base/plugin_call.h"

#include <stdio.h>

static struct plugin_call own, *current = &own;

void plugin_call_note_at(struct plugin_call *note)
{
    current = note;
}

void plugin_call_begin(enum plugin_call_kind kind, uint32_t first, uint32_t last, struct monotime begun)
{
    current->kind = kind;
    current->first = first;
    current->last = last;
    atomic_store_explicit(&current->begun_ns, begun.ns, memory_order_release);
}

void plugin_call_end(void)
{
    atomic_store_explicit(&current->begun_ns, 0, memory_order_release);
}

void plugin_call_name(char *out, size_t size, const struct plugin_call *note)
{
    static const char *const names[PLUGIN_CALL_KINDS] = {
        [PLUGIN_CALL_OPEN] = "open",  [PLUGIN_CALL_RESET] = "reset", [PLUGIN_CALL_STEP] = "step",
        [PLUGIN_CALL_SAVE] = "save",  [PLUGIN_CALL_LOAD] = "load",   [PLUGIN_CALL_RENDER] = "render",
        [PLUGIN_CALL_CLOSE] = "close"};
    const uint32_t kind = note->kind, first = note->first, last = note->last;
    const char *name = kind < PLUGIN_CALL_KINDS ? names[kind] : NULL;
    if (kind == PLUGIN_CALL_TEXT)
        snprintf(out, size, "%.95s", note->call);
    else if (name == NULL)
        snprintf(out, size, "dlopen or environment_plugin()");
    else if (first == last)
        snprintf(out, size, "%s of environment %u", name, first);
    else
        snprintf(out, size, "%s of environments %u to %u", name, first, last);
}
