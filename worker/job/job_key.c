/* What the lines of the key table are asked: which key this is, what its value must be, in words, and what
 * it is by default. Runs in whatever process reads or writes a job. */
#include "kernels/base/text.h"
#include "worker/job/job_table.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which key ---- */

const char *job_key_name(const struct job_key *key)
{
    return strrchr(key->pointer, '/') + 1;
}

const struct job_key *job_key_at(unsigned kinds, const char *pointer)
{
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) != 0 && strcmp(job_keys[i].pointer, pointer) == 0)
            return &job_keys[i];
    return NULL;
}

bool job_key_is_member(const struct job_key *key, const struct job_key *parent)
{
    size_t length = (size_t)(job_key_name(key) - key->pointer) - 1;
    return parent == NULL
               ? length == 0
               : strlen(parent->pointer) == length && memcmp(parent->pointer, key->pointer, length) == 0;
}

const struct job_key *job_key_member(unsigned kinds, const struct job_key *parent, const char *name)
{
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) != 0 && job_key_is_member(&job_keys[i], parent) &&
            strcmp(job_key_name(&job_keys[i]), name) == 0)
            return &job_keys[i];
    return NULL;
}

bool job_key_ignored(const char *name)
{
    return name[0] == '_' || strcmp(name, "$schema") == 0;
}

bool job_key_planned(const char *pointer)
{
    static const char *const planned[] = {"/agent", "/observers/groups"};
    for (size_t i = 0; i < sizeof planned / sizeof planned[0]; i++)
        if (strcmp(planned[i], pointer) == 0)
            return true;
    return false;
}

unsigned job_key_kinds(const struct job_key *key)
{
    unsigned kinds = 0;
    for (size_t i = 0; i < job_key_count; i++)
        if (strcmp(job_keys[i].pointer, key->pointer) == 0)
            kinds |= job_keys[i].kinds;
    return kinds;
}

const char *job_kind_name(int kind)
{
    return job_key_at(JOB_KINDS_ALL, "/kind")->names[kind];
}

/* ---- what a value may be ---- */

bool job_name_valid(const char *name)
{
    size_t length = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return length > 0 && length < JOB_NAME_BYTES && name[length] == '\0' && name[0] != '.' && name[0] != '-';
}

bool job_path_valid(const char *text, double min, double max)
{
    size_t length = strlen(text);
    if ((double)length < min || (double)length > max)
        return false;
    for (size_t at = 0, bytes; at < length; at += bytes) {
        char shown[16];
        bytes = text_character(text + at, length - at);
        if (bytes == 0 || text_show(shown, sizeof shown, text + at, bytes, 1) != bytes ||
            memcmp(shown, text + at, bytes) != 0)
            return false;
    }
    return true;
}

/* A number in min..max that ends the text, as printf would write it. */
static bool read_decimal(uint32_t *number, const char *text, uint32_t min, uint32_t max)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 4 || text[digits] != '\0' || (digits > 1 && text[0] == '0'))
        return false;
    *number = (uint32_t)strtoul(text, NULL, 10);
    return *number >= min && *number <= max;
}

bool job_round_parse(struct job_round_rule *round, const char *text)
{
    struct job_round_rule read = {.rule = JOB_ROUND_ALL};
    bool good = strcmp(text, "all") == 0;
    if (strncmp(text, "first ", 6) == 0) {
        read.rule = JOB_ROUND_FIRST;
        good = read_decimal(&read.number, text + 6, 1, JOB_TRAINERS_MAX);
    } else if (strncmp(text, "async ", 6) == 0) {
        read.rule = JOB_ROUND_ASYNC;
        good = read_decimal(&read.number, text + 6, 0, JOB_STALENESS_MAX);
    }
    if (good)
        *round = read;
    return good;
}

void job_round_show(char text[JOB_ROUND_BYTES], const struct job_round_rule *round)
{
    if (round->rule == JOB_ROUND_ALL)
        snprintf(text, JOB_ROUND_BYTES, "all");
    else
        snprintf(text, JOB_ROUND_BYTES, "%s %u", round->rule == JOB_ROUND_FIRST ? "first" : "async",
                 round->number);
}

bool job_place_parse(struct job_place *place, const char *text)
{
    struct job_place read = {.on_server = strncmp(text, "server ", 7) == 0};
    if (read.on_server ? !read_decimal(&read.server, text + 7, 0, JOB_SERVERS_MAX - 1)
                       : strcmp(text, "trainer") != 0)
        return false;
    place->on_server = read.on_server; /* one by one: equal jobs are equal byte for byte */
    place->server = read.server;
    return true;
}

void job_place_show(char text[JOB_PLACE_BYTES], const struct job_place *place)
{
    if (place->on_server)
        snprintf(text, JOB_PLACE_BYTES, "server %u", place->server);
    else
        snprintf(text, JOB_PLACE_BYTES, "trainer");
}

void job_write_string(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', stream);
        fputc(*text, stream);
    }
    fputc('"', stream);
}

void job_number_show(char text[32], double value)
{
    for (int digits = fabs(value) < 1e15 && value == floor(value) ? 15 : 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

/* ---- what a value must be, in words ---- */

static void expect_names(char *text, size_t size, const struct job_key *key)
{
    int length = snprintf(text, size, key->names[1] == NULL ? "" : "one of ");
    const char *separator = "";
    for (size_t i = 0; key->names[i] != NULL; i++) {
        if (key->names[i][0] == '\0')
            continue;
        length += snprintf(text + length, size - (size_t)length, "%s\"%s\"", separator, key->names[i]);
        separator = ", ";
    }
}

static void expect_number(char *text, size_t size, const struct job_key *key)
{
    char min[32], max[32];
    job_number_show(min, key->min);
    job_number_show(max, key->max);
    if (key->bounds_only)
        snprintf(text, size, "%s or %s", min, max);
    else if (key->type == JOB_INTEGER)
        snprintf(text, size, "an integer in %s..%s", min, max);
    else if (key->max == DBL_MAX)
        snprintf(text, size, "a number");
    else
        snprintf(text, size, "a number in %c%s, %s%c", key->min_open ? '(' : '[', min, max,
                 key->max_open ? ')' : ']');
}

static void expect_value(char *text, size_t size, const struct job_key *key)
{
    switch (key->type) {
    case JOB_OBJECT:
        snprintf(text, size, "an object");
        break;
    case JOB_INTEGER:
    case JOB_NUMBER:
    case JOB_CHANNELS:
        expect_number(text, size, key);
        break;
    case JOB_BOOLEAN:
        snprintf(text, size, "true or false");
        break;
    case JOB_ENUM:
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
        expect_names(text, size, key);
        break;
    case JOB_NAME:
        snprintf(text, size, "1 to %d of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -",
                 JOB_NAME_BYTES - 1);
        break;
    case JOB_PATH:
        snprintf(text, size, "a path of %.0f to %.0f bytes, all of them printable UTF-8", key->min, key->max);
        break;
    case JOB_ROUND:
        snprintf(text, size, "\"all\", \"first K\" with K in 1..%d, or \"async S\" with S in 0..%d",
                 JOB_TRAINERS_MAX, JOB_STALENESS_MAX);
        break;
    case JOB_PLACE:
        snprintf(text, size, "\"trainer\", or \"server K\" with K in 0..%d", JOB_SERVERS_MAX - 1);
        break;
    }
}

void job_key_expected(char text[JOB_EXPECTED_BYTES], const struct job_key *key)
{
    int length = snprintf(text, JOB_EXPECTED_BYTES, "%s%s", key->nullable ? "null or " : "",
                          key->list_of_one            ? "an array of exactly one element, "
                          : key->type == JOB_CHANNELS ? "an array of 1 or 3 elements, each "
                                                      : "");
    expect_value(text + length, JOB_EXPECTED_BYTES - (size_t)length, key);
}

void job_key_expected_element(char text[JOB_EXPECTED_BYTES], const struct job_key *key)
{
    expect_value(text, JOB_EXPECTED_BYTES, key);
}

/* ---- defaults ---- */

static void set_default(struct job *job, const struct job_key *key)
{
    void *at = (char *)job + key->offset;
    double value = key->default_number;
    if (key->nullable)
        *((bool *)((char *)job + key->offset_present)) = !key->null_by_default;
    switch (key->type) {
    case JOB_INTEGER:
        if (key->bytes == sizeof(uint32_t))
            *(uint32_t *)at = (uint32_t)value;
        else
            *(uint64_t *)at = (uint64_t)value;
        break;
    case JOB_NUMBER:
        *(double *)at = value;
        break;
    case JOB_BOOLEAN:
        *(bool *)at = value != 0;
        break;
    case JOB_ENUM:
        *(int *)at = (int)value;
        break;
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
        snprintf(at, key->bytes, "%s", key->names[(size_t)value]);
        break;
    case JOB_ROUND:
        ((struct job_round_rule *)at)->rule = (int)value;
        break;
    case JOB_PLACE:
        ((struct job_place *)at)->on_server = value != 0;
        break;
    case JOB_CHANNELS:
        ((struct job_channels *)at)->count = 1;
        ((struct job_channels *)at)->value[0] = value;
        break;
    case JOB_NAME:
    case JOB_PATH:
    case JOB_OBJECT:
        break;
    }
}

void job_defaults(struct job *job, unsigned kinds)
{
    memset(job, 0, sizeof *job);
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & kinds) == kinds)
            set_default(job, &job_keys[i]);
}
