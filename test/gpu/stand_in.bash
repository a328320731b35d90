# Sourced by the tests that run the GPU backend on the stand-in for a GPU, behind test/shell.bash: skips where the stand-in is
# not built, and has the plug-ins of this build with the stand-in's in COALESCED_PLUGINS.

# shellcheck disable=SC2154 # test/shell.bash makes the folder
plugin=$BUILD/gpu/libcoalesced-cuda.so
if [[ ! -e $plugin ]]; then
    skip "no stand-in for a GPU: the headers of CUDA and cuDNN are not installed"
fi
COALESCED=$(readlink -f "$COALESCED")
mkdir "$scratch/plugins"
ln -s "$BUILD"/libcoalesced-*.so "$scratch/plugins/"
ln -sf "$plugin" "$scratch/plugins/"
export COALESCED_PLUGINS=$scratch/plugins
