/* A test's folder with a job file and a run directory. */
#include "test/workplace.h"

#include "kernels/base/denormals.h"
#include "test/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct workplace workplace;

void workplace_open(void)
{
    struct workplace *w = &workplace;
    folder_make(w->folder);
    snprintf(w->job_path, sizeof w->job_path, "%.63s/job.json", w->folder);
    snprintf(w->run_dir, sizeof w->run_dir, "%.63s/run", w->folder);
    snprintf(w->log, sizeof w->log, "%.95s/episodes.log", w->run_dir);
    snprintf(w->jsonl, sizeof w->jsonl, "%.95s/episodes.jsonl", w->run_dir);
}

void workplace_close(void)
{
    folder_remove(workplace.folder);
}

void workplace_write_job(const char *text)
{
    FILE *file = fopen(workplace.job_path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

char *log_numbers(const char *path)
{
    static const char *const times[] = {",\"timing\"", "\tSamples/s:", "\tTokens/s:"};
    char *text = file_read(path), *rest, *kept = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&kept, &bytes);
    ck_assert_ptr_nonnull(stream);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "{\"event\"", 8) == 0)
            continue;
        for (unsigned i = 0; i < sizeof times / sizeof times[0]; i++) {
            char *time = strstr(line, times[i]);
            if (time != NULL)
                *time = '\0';
        }
        fprintf(stream, "%s\n", line);
    }
    fclose(stream);
    free(text);
    return kept;
}

int suite_run(Suite *suite)
{
    denormals_flush(); // as main does
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
