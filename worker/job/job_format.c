/* A job as JSON text: one line per top-level key, groups in one line each, in the table's order. Runs in
 * whatever process hands a job on. */
#include "worker/job/job.h"

#include "worker/job/job_table.h"

#include <stdlib.h>

static void write_member(FILE *stream, const struct job *job, const struct job_key *key)
{
    fprintf(stream, "\"%s\": ", job_key_name(key));
    job_value_write(stream, job, key, false);
}

static void write_group(FILE *stream, const struct job *job, const struct job_key *group)
{
    fprintf(stream, "\"%s\": {", job_key_name(group));
    const char *separator = "";
    for (size_t i = 0; i < job_key_count; i++)
        if ((job_keys[i].kinds & JOB_KINDS_OF(job->kind)) != 0 &&
            job_key_is_member(&job_keys[i], group->pointer)) {
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
        if ((job_keys[i].kinds & JOB_KINDS_OF(job->kind)) == 0 || !job_key_is_member(&job_keys[i], ""))
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
