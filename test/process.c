/* Starts programs under test, waits for them, reads their output. */
#include "test/process.h"

#include "kernels/base/monotime.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *daemon_path(void)
{
    static char path[4096];
    const char *named = getenv("COALESCED");
    ck_assert_msg(realpath(named != NULL ? named : "build/release/coalesced", path) != NULL,
                  "no daemon at %s", named != NULL ? named : "build/release/coalesced");
    return path;
}

void folder_make(char path[64])
{
    snprintf(path, 64, "/tmp/coalesced-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(path));
    ck_assert_int_eq(chmod(path, 0777), 0);
}

void folder_remove(const char *path)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    ck_assert_int_eq(system(command), 0);
}

void sleep_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void change_environment(const char *const *environment)
{
    for (; environment != NULL && *environment != NULL; environment++) {
        if (strchr(*environment, '=') != NULL)
            putenv((char *)(size_t)*environment);
        else
            unsetenv(*environment);
    }
}

static bool as_nobody(const struct process_options *options)
{
    return options != NULL && options->unprivileged && geteuid() == 0;
}

static void file_copy(const char *original, const char *copy)
{
    const int from = open(original, O_RDONLY | O_CLOEXEC);
    const int to = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ssize_t sent;
    ck_assert_int_ge(from, 0);
    ck_assert_int_eq(fchmod(to, 0755), 0);
    do {
        sent = sendfile(to, from, NULL, (size_t)1 << 30);
        ck_assert_int_ge(sent, 0);
    } while (sent > 0);
    close(from);
    ck_assert_int_eq(close(to), 0);
}

/* The checkout may lie below a folder that only root can enter, so nobody starts a copy of the program, which
 * finds a copy of the CPU's plug-in beside it. */
static void program_copy(const char *program, const char *folder, const char *copy)
{
    char plugin[512], plugin_copy[192];
    const char *name = strrchr(program, '/');
    file_copy(program, copy);
    snprintf(plugin, sizeof plugin, "%.*s/libcoalesced-onednn.so", (int)(name - program), program);
    snprintf(plugin_copy, sizeof plugin_copy, "%s/libcoalesced-onednn.so", folder);
    if (access(plugin, R_OK) == 0)
        file_copy(plugin, plugin_copy);
}

static _Noreturn void become(const struct process *process, const char *program, const char *const *argv,
                             const struct process_options *options)
{
    int out = open(process->out_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    int err = open(process->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (options != NULL) {
        change_environment(options->environment);
        if (options->directory != NULL && chdir(options->directory) != 0)
            _exit(120);
        if (options->file_bytes_max > 0) {
            struct rlimit limit = {options->file_bytes_max, options->file_bytes_max};
            setrlimit(RLIMIT_FSIZE, &limit);
        }
        if (options->fifo != NULL && dup2(open(options->fifo, O_RDWR), STDOUT_FILENO) < 0)
            _exit(123);
        for (int fd = 0; fd <= STDERR_FILENO && options->closed; fd++)
            close(fd);
        if (options->own_group)
            setpgid(0, 0);
        if (as_nobody(options) && (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
            _exit(121);
    }
    execv(program, (char *const *)(size_t)argv);
    _exit(122);
}

void process_start(struct process *process, const char *folder, const char *const *argv,
                   const struct process_options *options)
{
    static unsigned started;
    char copy[128];
    const char *program = argv[0];
    started++;
    if (as_nobody(options)) {
        snprintf(copy, sizeof copy, "%s/program-%u", folder, started);
        program_copy(program, folder, copy);
        program = copy;
    }
    snprintf(process->out_path, sizeof process->out_path, "%s/out-%u", folder, started);
    snprintf(process->err_path, sizeof process->err_path, "%s/err-%u", folder, started);
    process->pid = fork();
    ck_assert_int_ge(process->pid, 0);
    if (process->pid == 0)
        become(process, program, argv, options);
}

int process_wait(struct process *process, unsigned limit_s)
{
    struct monotime until = monotime_add_us(monotime_now(), (uint64_t)limit_s * 1000000);
    int status;
    for (;;) {
        pid_t ended = waitpid(process->pid, &status, WNOHANG);
        if (ended == process->pid)
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (!monotime_before(monotime_now(), until))
            break;
        sleep_ms(2);
    }
    kill(process->pid, SIGKILL);
    waitpid(process->pid, &status, 0);
    char *err = process_err(process);
    ck_abort_msg("process %d did not end within %u s; it said: %s", (int)process->pid, limit_s, err);
    return -1;
}

int process_run(struct process *process, const char *folder, const char *const *argv,
                const struct process_options *options, unsigned limit_s)
{
    process_start(process, folder, argv, options);
    return process_wait(process, limit_s);
}

char *file_read(const char *path)
{
    char *text = NULL;
    size_t bytes = 0, got;
    FILE *file = fopen(path, "r");
    do {
        char *larger = realloc(text, bytes + 65536);
        ck_assert_ptr_nonnull(larger);
        text = larger;
        got = file != NULL ? fread(text + bytes, 1, 65535, file) : 0;
        bytes += got;
    } while (got > 0);
    text[bytes] = '\0';
    if (file != NULL)
        fclose(file);
    return text;
}

static void put_text(const char *path, const char *mode, const char *text)
{
    FILE *file = fopen(path, mode);
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

void text_write(const char *path, const char *text)
{
    put_text(path, "w", text);
}

void text_append(const char *path, const char *text)
{
    put_text(path, "a", text);
}

char *process_out(const struct process *process)
{
    return file_read(process->out_path);
}

char *process_err(const struct process *process)
{
    return file_read(process->err_path);
}

bool file_wait_for(const char *path, const char *text, unsigned limit_s)
{
    struct monotime until = monotime_add_us(monotime_now(), (uint64_t)limit_s * 1000000);
    for (;;) {
        char *now = file_read(path);
        bool found = strstr(now, text) != NULL;
        free(now);
        if (found || !monotime_before(monotime_now(), until))
            return found;
        sleep_ms(5);
    }
}

/* The parent's pid in /proc/PID/stat: the second field after the name's closing parenthesis. */
static pid_t parent_of(const char *stat)
{
    const char *name_end = strrchr(stat, ')');
    int parent = 0;
    if (name_end != NULL)
        sscanf(name_end + 1, " %*c %d", &parent);
    return parent;
}

static bool command_holds(const char *pid, const char *word)
{
    char path[64], command[512];
    snprintf(path, sizeof path, "/proc/%.20s/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    size_t bytes = fread(command, 1, sizeof command - 1, file);
    fclose(file);
    for (size_t i = 0; i < bytes; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    command[bytes] = '\0';
    return strstr(command, word) != NULL;
}

size_t process_children(pid_t parent, const char *word, pid_t *pids, size_t max)
{
    size_t count = 0;
    DIR *proc = opendir("/proc");
    ck_assert_ptr_nonnull(proc);
    for (struct dirent *entry; count < max && (entry = readdir(proc)) != NULL;) {
        char path[300];
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        char *stat = file_read(path);
        if (parent_of(stat) == parent && command_holds(entry->d_name, word))
            pids[count++] = (pid_t)atoi(entry->d_name);
        free(stat);
    }
    closedir(proc);
    return count;
}

size_t text_count(const char *text, const char *needle)
{
    size_t count = 0;
    while ((text = strstr(text, needle)) != NULL) {
        count++;
        text += strlen(needle);
    }
    return count;
}
