/* Finding and loading a backend's plug-in. A worker does it once, at its start, on its main thread. */
#include "kernels/backend.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- plug-ins ---- */

enum { FOLDERS_MAX = 3 };

struct folders {
    uint32_t count;
    char path[FOLDERS_MAX][PATH_MAX];
};

/* Where plug-ins may be, in the order in which they are looked for. */
static enum status find_folders(struct folders *folders, struct error *error)
{
    static const char *const below_program[FOLDERS_MAX] = {"", "/..", "/../lib/coalesced"};
    char program[PATH_MAX];
    const char *set = secure_getenv("COALESCED_PLUGINS");
    if (set != NULL && *set != '\0') {
        folders->count = 1;
        if ((size_t)snprintf(folders->path[0], PATH_MAX, "%s", set) >= PATH_MAX)
            return error_set(error, STATUS_UNAVAILABLE, "COALESCED_PLUGINS: the path is too long");
        return STATUS_OK;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return error_set(error, STATUS_UNAVAILABLE, "/proc/self/exe cannot be read: no plug-in is found");
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    folders->count = 0;
    for (int i = 0; i < FOLDERS_MAX; i++) {
        char *path = folders->path[folders->count];
        if ((size_t)snprintf(path, PATH_MAX, "%s%s", program, below_program[i]) < PATH_MAX)
            folders->count++;
    }
    return STATUS_OK;
}

/* The file of the first folder that has it. STATUS_NOT_FOUND. */
static enum status find_plugin(const struct folders *folders, const char *name, char path[PATH_MAX])
{
    for (uint32_t i = 0; i < folders->count; i++) {
        int length = snprintf(path, PATH_MAX, "%s/libcoalesced-%s.so", folders->path[i], name);
        if (length < PATH_MAX && access(path, F_OK) == 0)
            return STATUS_OK;
    }
    return STATUS_NOT_FOUND;
}

static enum status load_table(const struct backend_ops **out, const char *path, struct error *error)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s", dlerror());
    backend_plugin *plugin = NULL;
    *(void **)&plugin = dlsym(library, BACKEND_PLUGIN_SYMBOL);
    *out = plugin != NULL ? plugin(BACKEND_ABI) : NULL;
    dlclose(library); // stays loaded: RTLD_NODELETE
    if (plugin == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s is no plug-in: it has no %s", path,
                         BACKEND_PLUGIN_SYMBOL);
    if (*out == NULL)
        return error_set(error, STATUS_UNAVAILABLE, "%s is of another version: expected one for interface %d",
                         path, BACKEND_ABI);
    return STATUS_OK;
}

enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error)
{
    struct folders folders;
    char path[PATH_MAX];
    assert(strchr(name, '/') == NULL);
    enum status status = find_folders(&folders, error);
    if (status != STATUS_OK)
        return status;
    if (find_plugin(&folders, name, path) != STATUS_OK)
        return error_set(error, STATUS_UNAVAILABLE, "there is no libcoalesced-%s.so in %s%s", name,
                         folders.path[0], folders.count > 1 ? ", above it or in ../lib/coalesced" : "");
    const struct backend_ops *ops = NULL;
    status = load_table(&ops, path, error);
    return status == STATUS_OK ? backend_open(out, ops, settings, error) : status;
}

enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error)
{
    struct error reason = {0};
    if (device != DEVICE_CPU) {
        if (backend_load(out, "cuda", settings, &reason) == STATUS_OK)
            return STATUS_OK;
        if (device == DEVICE_GPU)
            return error_set(error, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
        error_set(why, STATUS_UNAVAILABLE, "no GPU can be used: %s", reason.text);
    }
    return backend_load(out, "onednn", settings, error);
}
