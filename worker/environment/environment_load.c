/* dlopen, dlsym, and a look at the table. */
#include "worker/environment/environment_load.h"

#include "worker/environment/environment_spec.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef const struct environment_plugin *plugin_function(void);

static enum status open_library(void **library, const char *path, struct error *error)
{
    char direct[PATH_MAX]; /* with a slash: dlopen searches the system's folders for a name without one */
    if (access(path, R_OK) != 0)
        return error_set_errno(error, errno, "%s", path);
    if ((size_t)snprintf(direct, sizeof direct, "%s%s", strchr(path, '/') == NULL ? "./" : "", path) >=
        sizeof direct)
        return error_set_errno(error, ENAMETOOLONG, "%.200s…", path);
    *library = dlopen(direct, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (*library == NULL)
        return error_set(error, STATUS_INVALID, "%s cannot be loaded: %s", path, dlerror());
    return STATUS_OK;
}

enum status environment_load(const struct environment_plugin **out, const char *path, struct error *error)
{
    void *library;
    enum status status = open_library(&library, path, error);
    if (status != STATUS_OK)
        return status;
    plugin_function *plugin = NULL;
    *(void **)&plugin = dlsym(library, "environment_plugin");
    dlclose(library); /* stays loaded: RTLD_NODELETE */
    if (plugin == NULL)
        return error_set(error, STATUS_INVALID,
                         "%s is no plug-in of environments: it has no function environment_plugin()", path);
    const struct environment_plugin *table = plugin();
    struct error why;
    status = environment_table_check(table, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "%s: %s", path, why.text);
    *out = table;
    return STATUS_OK;
}
