/* Finds the table of an environment: a built-in one by its name, or a plug-in's by its file. */
#include "worker/environment/environment_load.h"

#include "kernels/base/plugin_call.h"
#include "kernels/base/program_files.h"
#include "worker/environment/classic.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef const struct environment_plugin *plugin_function(void);

bool environment_has_name(const struct environment_plugin *plugin, const char *name)
{
    for (const char *const *known = plugin->names; *known != NULL; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

bool environment_is_built_in(const char *name)
{
    return environment_has_name(&classic_environments, name);
}

enum { KNOWN_BYTES = 256 };

/* The names of all built-in environments. */
static void list_known(char known[KNOWN_BYTES])
{
    known[0] = '\0';
    for (const char *const *name = classic_environments.names; *name != NULL; name++)
        snprintf(known + strlen(known), KNOWN_BYTES - strlen(known), "%s%s", known[0] != '\0' ? ", " : "",
                 *name);
}

/* Names the built-in environments where the missing file may be a misspelt one: neither a path nor a shared
 * object. */
static enum status set_missing(struct error *error, const char *from, int errnum)
{
    char known[KNOWN_BYTES];
    const size_t length = strlen(from);
    if (errnum != ENOENT || strchr(from, '/') != NULL ||
        (length >= 3 && strcmp(from + length - 3, ".so") == 0))
        return error_set_errno(error, errnum, "%s", from);
    list_known(known);
    return error_set(error, STATUS_NOT_FOUND, "%.100s: no such file, and no built-in environment (%s)", from,
                     known);
}

enum status environment_check_built_in(const char *name, struct error *error)
{
    char known[KNOWN_BYTES];
    list_known(known);
    return environment_is_built_in(name)
               ? STATUS_OK
               : error_set(error, STATUS_NOT_FOUND,
                           "there is no built-in environment %.100s: expected one of %s", name, known);
}

/* The path that dlopen takes as it is: with a slash, else dlopen searches the system's folders. A name
 * without one is that of a file in the working directory, or of a plug-in of the program's own. */
static enum status find_file(const char *from, char path[PATH_MAX], struct error *error)
{
    const bool is_name = strchr(from, '/') == NULL;
    if ((size_t)snprintf(path, PATH_MAX, "%s%s", is_name ? "./" : "", from) >= PATH_MAX)
        return error_set_errno(error, ENAMETOOLONG, "%.200s…", from);
    if (access(path, R_OK) == 0)
        return STATUS_OK;
    const int errnum = errno;
    if (errnum == ENOENT && is_name && program_find(path, PROGRAM_PLUGIN, from, NULL) == STATUS_OK)
        return STATUS_OK;
    return set_missing(error, from, errnum);
}

enum status environment_check_file(const char *from, struct error *error)
{
    char path[PATH_MAX];
    return find_file(from, path, error);
}

/* Whether the table is whole: version, size, names and the functions that no plug-in is without. The sentence
 * begins with a verb, for the file in front of it. */
static enum status check_table(const struct environment_plugin *plugin, struct error *error)
{
    if (plugin == NULL)
        return error_set(error, STATUS_INVALID, "environment_plugin() returned NULL: expected its table");
    if (plugin->version == 0 || plugin->version > ENVIRONMENT_VERSION)
        return error_set(error, STATUS_INVALID,
                         "was built for version %u of environment.h: expected version %d", plugin->version,
                         ENVIRONMENT_VERSION);
    if (plugin->size != sizeof *plugin)
        return error_set(error, STATUS_INVALID,
                         "has a struct environment_plugin of size %u: expected size = %zu", plugin->size,
                         sizeof *plugin);
    if (plugin->names == NULL || plugin->names[0] == NULL)
        return error_set(error, STATUS_INVALID, "has no names: expected at least one environment");
    const char *missing = plugin->open == NULL    ? "open"
                          : plugin->close == NULL ? "close"
                          : plugin->reset == NULL ? "reset"
                          : plugin->step == NULL  ? "step"
                                                  : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "has no function %s", missing);
    if ((plugin->save == NULL) != (plugin->load == NULL))
        return error_set(error, STATUS_INVALID, "has save or load: expected both or none");
    return STATUS_OK;
}

static enum status load_plugin(const struct environment_plugin **out, const char *from, struct error *error)
{
    char path[PATH_MAX];
    void (*function)(void);
    struct error why;
    const enum status status = find_file(from, path, error);
    if (status != STATUS_OK)
        return status;
    if (plugin_load(&function, path, "environment_plugin", &why) != STATUS_OK)
        return error_set(error, STATUS_INVALID, "%s %s", from, why.text);
    *out = ((plugin_function *)function)();
    return check_table(*out, &why) == STATUS_OK ? STATUS_OK
                                                : error_set(error, STATUS_INVALID, "%s: %s", from, why.text);
}

enum status environment_load(const struct environment_plugin **out, const char *from, struct error *error)
{
    if (environment_is_built_in(from)) {
        *out = &classic_environments;
        return STATUS_OK;
    }
    plugin_call_begin(PLUGIN_CALL_LOAD_FILE, 0, 0, monotime_now());
    const enum status status = load_plugin(out, from, error);
    plugin_call_end();
    return status;
}
