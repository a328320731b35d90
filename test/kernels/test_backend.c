/* The search for plug-ins, and the messages about plug-ins that cannot be used. The plug-ins are
 * test/preload's. */
#include "kernels/kernels.h"
#include "test/oracle/ref.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct backend_settings one_thread = {.threads = 1};

static char folder[64];            // $COALESCED_PLUGINS
static char program_dir[PATH_MAX]; // where this test lies; the plug-ins are in preload/ below it
static struct backend *backend;
static struct error error;

static void open_folder(void)
{
    ssize_t length = readlink("/proc/self/exe", program_dir, sizeof program_dir - 1);
    ck_assert_int_gt(length, 0);
    program_dir[length] = '\0';
    *strrchr(program_dir, '/') = '\0';
    folder_make(folder);
    ck_assert_int_eq(setenv("COALESCED_PLUGINS", folder, 1), 0);
    backend = NULL;
    error = (struct error){0};
}

static void close_folder(void)
{
    backend_close(backend);
    folder_remove(folder);
}

/* Makes test/preload's plug-in `plugin` known as backend `name` in `where`. */
static void install(const char *where, const char *name, const char *plugin)
{
    char from[PATH_MAX + 64], to[PATH_MAX + 64];
    snprintf(from, sizeof from, "%s/preload/%s.so", program_dir, plugin);
    snprintf(to, sizeof to, "%s/libcoalesced-%s.so", where, name);
    ck_assert_msg(access(from, R_OK) == 0, "%s is not there", from);
    unlink(to);
    ck_assert_int_eq(symlink(from, to), 0);
}

static void load_fails(const char *name, const struct backend_settings *settings, const char *first,
                       const char *second)
{
    ck_assert_int_eq(backend_load(&backend, name, settings, &error), STATUS_UNAVAILABLE);
    ck_assert_int_eq(error.status, STATUS_UNAVAILABLE);
    ck_assert_msg(strstr(error.text, first) != NULL, "\"%s\" does not say \"%s\"", error.text, first);
    ck_assert_msg(strstr(error.text, second) != NULL, "\"%s\" does not say \"%s\"", error.text, second);
    ck_assert_ptr_null(backend);
}

START_TEST(a_plugin_in_the_folder_is_loaded)
{
    install(folder, "onednn", "plugin_tiny");
    ck_assert_int_eq(backend_load(&backend, "onednn", &one_thread, &error), STATUS_OK);
    ck_assert_str_eq(backend->ops->name, "tiny");
    struct backend *second = NULL;
    ck_assert_int_eq(backend_load(&second, "onednn", &one_thread, &error), STATUS_OK);
    ck_assert_ptr_eq(second->ops, backend->ops); // loaded once
    backend_close(second);
}
END_TEST

START_TEST(a_plugin_that_is_not_there)
{
    load_fails("onednn", &one_thread, "there is no libcoalesced-onednn.so in ", folder);
}
END_TEST

/* Copies this program to bin/ of the folder and has it load backend "around", with `environment` for the
 * plug-ins' folder. It exits with 0 when that opened; what it says is in *said, to be freed. */
static int load_elsewhere(const char *environment, char **said)
{
    char bin[128], program[192], self[64];
    struct process process;
    const char *const variables[] = {environment, NULL};
    const struct process_options options = {.environment = variables};
    snprintf(bin, sizeof bin, "%s/bin", folder);
    snprintf(program, sizeof program, "%s/loader", bin);
    mkdir(bin, 0777);
    snprintf(self, sizeof self, "/proc/%d/exe", (int)getpid());
    const char *const copy[] = {"/bin/cp", self, program, NULL};
    const char *const load[] = {program, "--load", "around", NULL};
    ck_assert_int_eq(process_run(&process, folder, copy, NULL, 60), 0);
    int code = process_run(&process, folder, load, &options, 60);
    *said = process_err(&process);
    return code;
}

/* What the copy does. */
static int load_and_tell(const char *name)
{
    if (backend_load(&backend, name, &one_thread, &error) == STATUS_OK) {
        backend_close(backend);
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "%s\n", error.text);
    return EXIT_FAILURE;
}

static void install_below(const char *below, const char *name)
{
    char where[128];
    snprintf(where, sizeof where, "%s/%s", folder, below);
    mkdir(where, 0777);
    install(where, name, "plugin_tiny");
}

START_TEST(a_set_folder_is_the_only_one)
{
    char variable[128], *said;
    install_below("bin", "around");
    snprintf(variable, sizeof variable, "COALESCED_PLUGINS=%s/none", folder);
    ck_assert_int_eq(load_elsewhere(variable, &said), EXIT_FAILURE);
    ck_assert_ptr_nonnull(strstr(said, "there is no libcoalesced-around.so in "));
    ck_assert_ptr_nonnull(strstr(said, "/none\n"));
    free(said);
    ck_assert_int_eq(load_elsewhere("COALESCED_PLUGINS=", &said), EXIT_SUCCESS); // as good as not set
    free(said);
}
END_TEST

/* Without $COALESCED_PLUGINS: beside the program, above it, and in ../lib/coalesced; and in the folder above
 * that one not. */
START_TEST(folders_around_the_program_are_searched)
{
    static const struct {
        const char *folder;
        int code;
    } around[] = {
        {"bin", EXIT_SUCCESS}, {".", EXIT_SUCCESS}, {"lib", EXIT_FAILURE}, {"lib/coalesced", EXIT_SUCCESS}};
    char lib[128], *said;
    snprintf(lib, sizeof lib, "%s/lib", folder);
    ck_assert_int_eq(mkdir(lib, 0777), 0);
    install_below(around[_i].folder, "around");
    ck_assert_int_eq(load_elsewhere("COALESCED_PLUGINS", &said), around[_i].code);
    ck_assert_int_eq(strstr(said, "/bin, above it or in ../lib/coalesced") != NULL,
                     around[_i].code == EXIT_FAILURE);
    free(said);
}
END_TEST

START_TEST(a_plugin_of_another_version)
{
    char expected[32];
    snprintf(expected, sizeof expected, "interface %d", BACKEND_ABI);
    install(folder, "onednn", "plugin_other_version");
    load_fails("onednn", &one_thread, "libcoalesced-onednn.so is of another version", expected);
}
END_TEST

START_TEST(a_library_that_is_no_plugin)
{
    install(folder, "onednn", "count_allocations");
    load_fails("onednn", &one_thread, "libcoalesced-onednn.so is no plug-in", BACKEND_PLUGIN_SYMBOL);
}
END_TEST

START_TEST(a_file_that_is_no_library)
{
    char path[128];
    snprintf(path, sizeof path, "%s/libcoalesced-onednn.so", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs("no library", file), 0);
    ck_assert_int_eq(fclose(file), 0);
    load_fails("onednn", &one_thread, path, "file too short");
}
END_TEST

START_TEST(a_plugin_that_finds_no_device)
{
    const struct backend_settings none = {.threads = 0};
    install(folder, "onednn", "plugin_tiny");
    load_fails("onednn", &none, "tiny finds no device", "");
}
END_TEST

/* What each device takes with neither plug-in there, the CPU's, the GPU's, and both. */
START_TEST(a_device_is_what_was_asked_for)
{
    enum { NONE, CPU, GPU };
    static const struct {
        enum device device;
        bool cpu, gpu;
        int expected;
    } cases[] = {
        {DEVICE_AUTO, true, false, CPU},   {DEVICE_AUTO, true, true, GPU},  {DEVICE_AUTO, false, true, GPU},
        {DEVICE_AUTO, false, false, NONE}, {DEVICE_CPU, true, true, CPU},   {DEVICE_CPU, false, true, NONE},
        {DEVICE_GPU, true, true, GPU},     {DEVICE_GPU, true, false, NONE},
    };
    struct error why = {0};
    if (cases[_i].cpu)
        install(folder, "onednn", "plugin_tiny");
    if (cases[_i].gpu)
        install(folder, "cuda", "plugin_tiny");
    enum status status = backend_load_device(&backend, cases[_i].device, &one_thread, &why, &error);
    ck_assert_int_eq(status, cases[_i].expected == NONE ? STATUS_UNAVAILABLE : STATUS_OK);
    if (cases[_i].expected == NONE) {
        ck_assert_str_ne(error.text, "");
        return;
    }
    ck_assert_ptr_nonnull(strstr(backend->text, cases[_i].expected == GPU ? "-cuda.so" : "-onednn.so"));
    const bool told = cases[_i].device == DEVICE_AUTO && cases[_i].expected == CPU;
    ck_assert_int_eq(why.status, told ? STATUS_UNAVAILABLE : STATUS_OK);
    ck_assert_int_eq(strstr(why.text, "no GPU can be used: there is no libcoalesced-cuda.so") != NULL, told);
}
END_TEST

START_TEST(a_gpu_that_is_not_there_is_said)
{
    install(folder, "onednn", "plugin_tiny");
    ck_assert_int_eq(backend_load_device(&backend, DEVICE_GPU, &one_thread, NULL, &error),
                     STATUS_UNAVAILABLE);
    ck_assert(strstr(error.text, "no GPU can be used: there is no libcoalesced-cuda.so") != NULL);
    ck_assert_int_eq(backend_load_device(&backend, DEVICE_AUTO, &one_thread, NULL, NULL), STATUS_OK);
}
END_TEST

START_TEST(a_linked_backend_is_opened)
{
    ck_assert_int_eq(backend_open(&backend, &ref_ops, &one_thread, &error), STATUS_OK);
    ck_assert_ptr_eq(backend->ops, &ref_ops);
    ck_assert_str_ne(backend->text, "");
    backend_close(NULL);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--load") == 0)
        return load_and_tell(argv[2]);
    Suite *suite = suite_create("backend");
    TCase *loading = tcase_create("loading");
    tcase_add_checked_fixture(loading, open_folder, close_folder);
    tcase_add_test(loading, a_plugin_in_the_folder_is_loaded);
    tcase_add_test(loading, a_plugin_that_is_not_there);
    tcase_add_test(loading, a_set_folder_is_the_only_one);
    tcase_add_loop_test(loading, folders_around_the_program_are_searched, 0, 4);
    tcase_add_test(loading, a_plugin_of_another_version);
    tcase_add_test(loading, a_library_that_is_no_plugin);
    tcase_add_test(loading, a_file_that_is_no_library);
    tcase_add_test(loading, a_plugin_that_finds_no_device);
    tcase_add_loop_test(loading, a_device_is_what_was_asked_for, 0, 8);
    tcase_add_test(loading, a_gpu_that_is_not_there_is_said);
    tcase_add_test(loading, a_linked_backend_is_opened);
    suite_add_tcase(suite, loading);
    return suite_run(suite);
}
