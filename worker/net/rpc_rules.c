/* A method's tensors, lent tensors, texts and repeated ids, checked. Any thread. */
#include "worker/net/rpc_rules.h"

#include <string.h>

static enum status rules_check_dims(const struct rpc_tensor_rule *rule, uint32_t rows_max, unsigned i,
                                    const struct wire_tensor *tensor, uint32_t *rows, struct error *error)
{
    for (unsigned d = 0; d < rule->rank; d++) {
        uint32_t dim = tensor->dims[d];
        if (rule->dims[d] != 0 && dim != rule->dims[d])
            return error_set(error, STATUS_INVALID, "tensor %u: dim %u is %u, expected %u", i, d, dim,
                             rule->dims[d]);
        if (rule->dims[d] != 0)
            continue;
        if (dim > rows_max)
            return error_set(error, STATUS_INVALID, "tensor %u: dim %u is %u, at most %u", i, d, dim,
                             rows_max);
        if (d == 0 && *rows != 0 && dim != *rows)
            return error_set(error, STATUS_INVALID, "tensor %u: %u rows, another has %u", i, dim, *rows);
        if (d == 0)
            *rows = dim;
    }
    return STATUS_OK;
}

enum status rules_check_tensors(const struct rpc_method *method, uint32_t rows_max,
                                const struct wire_header *header, struct error *error)
{
    if (header->tensor_count != method->tensor_count)
        return error_set(error, STATUS_INVALID, "%u tensors, expected %u", header->tensor_count,
                         method->tensor_count);
    uint32_t rows = 0;
    for (unsigned i = 0; i < method->tensor_count; i++) {
        const struct rpc_tensor_rule *rule = &method->tensors[i];
        const struct wire_tensor *tensor = &header->tensors[i];
        if (tensor->dtype != rule->dtype || tensor->rank != rule->rank)
            return error_set(error, STATUS_INVALID, "tensor %u: dtype %u of rank %u, expected %u of rank %u",
                             i, tensor->dtype, tensor->rank, rule->dtype, rule->rank);
        if (rules_check_dims(rule, rows_max, i, tensor, &rows, error) != STATUS_OK)
            return STATUS_INVALID;
    }
    return STATUS_OK;
}

void rules_open_message(struct rpc_message *message, const struct wire_header *header, const uint8_t *payload,
                        const void *const lent[WIRE_TENSORS_MAX])
{
    memcpy(message->args, header->args, sizeof message->args);
    message->context = header->context;
    message->tensor_count = header->tensor_count;
    message->lent = 0;
    for (unsigned i = 0; i < header->tensor_count; i++) {
        message->tensors[i] = header->tensors[i];
        bool is_lent = header->places[i] != 0;
        message->data[i] = is_lent ? lent[i] : payload;
        message->lent |= (uint8_t)((unsigned)is_lent << i);
        if (!is_lent)
            payload += wire_tensor_bytes(&header->tensors[i]);
    }
}

bool rules_lends(const struct wire_header *header)
{
    return (header->places[0] | header->places[1] | header->places[2] | header->places[3]) != 0;
}

enum status rules_find_lent(const struct wire_header *header, const struct segment *segment,
                            const void *lent[WIRE_TENSORS_MAX], struct error *error)
{
    for (unsigned i = 0; i < header->tensor_count; i++) {
        uint64_t place = header->places[i];
        lent[i] = NULL;
        if (place == 0)
            continue;
        lent[i] = segment_at(segment, place - 1, wire_tensor_bytes(&header->tensors[i]));
        if (lent[i] == NULL)
            return error_set(error, STATUS_INVALID, "tensor %u is lent from %llu on, outside of the segment",
                             i, (unsigned long long)(place - 1));
    }
    return STATUS_OK;
}

void rules_copy_text(char *out, size_t out_bytes, const void *text, size_t text_bytes)
{
    const uint8_t *from = text;
    size_t count = text_bytes < out_bytes - 1 ? text_bytes : out_bytes - 1;
    for (size_t i = 0; i < count; i++)
        out[i] = from[i] < 0x20 || from[i] == 0x7f ? '?' : (char)from[i];
    out[count] = '\0';
}

/* The window slides over a ring of bits: id i has bit i modulo its size. Bits between the old top and the
 * new belong to ids not seen yet, and are cleared as the window passes over them. */
bool replay_window_note(struct replay_window *window, uint64_t id)
{
    uint64_t top = window->top;
    if (id > top) {
        if (id - top >= REPLAY_WINDOW)
            memset(window->bits, 0, sizeof window->bits);
        else
            for (uint64_t i = top + 1; i < id; i++)
                window->bits[i % REPLAY_WINDOW / 64] &= ~(UINT64_C(1) << i % 64);
        window->top = id;
        window->bits[id % REPLAY_WINDOW / 64] |= UINT64_C(1) << id % 64;
        return true;
    }
    if (top - id >= REPLAY_WINDOW)
        return false;
    uint64_t *word = &window->bits[id % REPLAY_WINDOW / 64], bit = UINT64_C(1) << id % 64;
    bool is_new = (*word & bit) == 0;
    *word |= bit;
    return is_new;
}
