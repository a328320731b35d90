/* A job as JSON text: one line per top-level key, groups in one line each, in the table's order. Runs in
 * whatever process hands a job on. */
#include "worker/job/job_table.h"

#include <stdlib.h>
#include <string.h>

/* A group's members follow it in the table. */
char *job_format(const struct job *job, size_t *bytes)
{
    char *text = NULL;
    const char *before = "{\n  ", *group = "";
    FILE *stream = open_memstream(&text, bytes);
    if (stream == NULL)
        return NULL;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        char value[JOB_WORDS_BYTES] = "";
        if ((key->kinds & JOB_KINDS_OF(job->kind)) == 0)
            continue;
        if (!job_key_is_member(key, group)) {
            fputs("}", stream);
            before = ",\n  ";
            group = "";
        }
        fprintf(stream, "%s\"%s\": ", before, job_key_name(key));
        if (key->type == JOB_OBJECT)
            group = key->pointer;
        else
            words_add_value(value, job, key, false);
        before = key->type == JOB_OBJECT ? "{" : group[0] == '\0' ? ",\n  " : ", ";
        fputs(value, stream);
    }
    fputs(group[0] == '\0' ? "\n}\n" : "}\n}\n", stream);
    const bool failed = ferror(stream) != 0;
    if (fclose(stream) == 0 && !failed)
        return text;
    free(text);
    return NULL;
}
