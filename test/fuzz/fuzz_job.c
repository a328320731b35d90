/* Fuzzes the job parser with any bytes as a job file, and with the last line as an override.
 *
 * Holds two promises: a job that is accepted is, written and read again, the same struct; one that is refused
 * is refused with at least one line, and all that is said of it is UTF-8 without control characters. */
#include "kernels/base/text.h"
#include "worker/job/job.h"
#include "worker/job/job_table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bit for bit, but for what lies between the members. */
static bool same_job(const struct job *a, const struct job *b)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        const char *left = (const char *)a, *right = (const char *)b;
        if (memcmp(left + key->offset, right + key->offset, key->bytes) != 0 ||
            (key->nullable && left[key->offset_present] != right[key->offset_present]))
            return false;
    }
    return true;
}

static void check_written(const struct job *job)
{
    size_t bytes;
    char *text = job_format(job, &bytes);
    struct job again;
    char *problems;
    memset(&again, 0xA5, sizeof again);
    if (text == NULL || strlen(text) != bytes ||
        job_parse(&again, text, bytes, "again.json", NULL, 0, &problems) != STATUS_OK ||
        !same_job(job, &again))
        abort();
    free(text);
}

static void check_problems(const char *problems)
{
    unsigned lines = 0;
    if (problems == NULL || problems[0] == '\0')
        abort();
    const size_t bytes = strlen(problems);
    for (size_t at = 0; at < bytes;) {
        const unsigned char *byte = (const unsigned char *)problems + at;
        size_t length = text_character(problems + at, bytes - at);
        bool control = (byte[0] < 0x20 && byte[0] != '\n') || byte[0] == 0x7F ||
                       (length == 2 && byte[0] == 0xC2 && byte[1] < 0xA0);
        if (length == 0 || control)
            abort();
        lines += byte[0] == '\n';
        at += length;
    }
    if (lines == 0 || lines > 101 || problems[bytes - 1] != '\n')
        abort();
}

static void check_one(const char *text, size_t length, const char *override)
{
    struct job job;
    char *problems;
    enum status status =
        job_parse(&job, text, length, "fuzz.json", &override, override == NULL ? 0 : 1, &problems);
    if (status == STATUS_OK && problems == NULL)
        check_written(&job);
    else if (status == STATUS_INVALID)
        check_problems(problems);
    else
        abort();
    free(problems);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    check_one(text, size, NULL);
    const char *line = size == 0 ? NULL : memrchr(text, '\n', size);
    if (line == NULL)
        return 0;
    char *override = strndup(line + 1, size - (size_t)(line + 1 - text));
    check_one(text, (size_t)(line - text), override);
    free(override);
    return 0;
}
