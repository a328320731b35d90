/* A job as JSON text: one line per top-level key, groups in one line each, in the table's order. Runs in
 * whatever process hands a job on. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <stdlib.h>

static void write_channels(FILE *stream, const struct job_channels *channels)
{
    for (uint32_t i = 0; i < channels->count; i++)
        fprintf(stream, "%s%.17g", i == 0 ? "[" : ", ", channels->value[i]);
    fputc(']', stream);
}

static void write_round(FILE *stream, const struct job_round_rule *round)
{
    char text[JOB_ROUND_BYTES];
    job_round_show(text, round);
    job_write_string(stream, text);
}

static void write_place(FILE *stream, const struct job_place *place)
{
    char text[JOB_PLACE_BYTES];
    job_place_show(text, place);
    job_write_string(stream, text);
}

static void write_plain(FILE *stream, const struct job *job, const struct job_key *key)
{
    const void *at = (const char *)job + key->offset;
    switch (key->type) {
    case JOB_INTEGER:
        fprintf(stream, "%llu",
                key->bytes == sizeof(uint32_t) ? (unsigned long long)*(const uint32_t *)at
                                               : (unsigned long long)*(const uint64_t *)at);
        break;
    case JOB_NUMBER:
        fprintf(stream, "%.17g", *(const double *)at);
        break;
    case JOB_BOOLEAN:
        fputs(*(const bool *)at ? "true" : "false", stream);
        break;
    case JOB_ENUM:
        job_write_string(stream, key->names[*(const int *)at]);
        break;
    case JOB_CHOICE:
    case JOB_ENVIRONMENT:
    case JOB_NAME:
    case JOB_PATH:
        job_write_string(stream, at);
        break;
    case JOB_ROUND:
        write_round(stream, at);
        break;
    case JOB_PLACE:
        write_place(stream, at);
        break;
    case JOB_CHANNELS:
        write_channels(stream, at);
        break;
    case JOB_OBJECT:
        break;
    }
}

static void write_member(FILE *stream, const struct job *job, const struct job_key *key)
{
    fprintf(stream, "\"%s\": ", job_key_name(key));
    if (key->list_of_one)
        fputc('[', stream);
    if (key->nullable && !*(const bool *)((const char *)job + key->offset_present))
        fputs("null", stream);
    else
        write_plain(stream, job, key);
    if (key->list_of_one)
        fputc(']', stream);
}

static void write_group(FILE *stream, const struct job *job, const struct job_key *group)
{
    fprintf(stream, "\"%s\": {", job_key_name(group));
    const char *separator = "";
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(job->kind)) != 0 && job_key_is_member(&job_keys[i], group)) {
            fputs(separator, stream);
            write_member(stream, job, &job_keys[i]);
            separator = ", ";
        }
    fputc('}', stream);
}

char *job_format(const struct job *job, size_t *bytes)
{
    char *text = NULL;
    FILE *stream = open_memstream(&text, bytes);
    if (stream == NULL)
        return NULL;
    const char *separator = "{\n  ";
    for (size_t i = 0; i < job_key_count; i++) {
        if ((job_keys[i].kinds & JOB_KINDS_OF(job->kind)) == 0 || !job_key_is_member(&job_keys[i], NULL))
            continue;
        fputs(separator, stream);
        if (job_keys[i].type == JOB_OBJECT)
            write_group(stream, job, &job_keys[i]);
        else
            write_member(stream, job, &job_keys[i]);
        separator = ",\n  ";
    }
    fputs("\n}\n", stream);
    int failed = ferror(stream);
    if (fclose(stream) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
