# Downloads $REPOSITORY at $REVISION to $TARGET. A run that is interrupted is continued by the next one.
# Workers see the directory only once it is complete.
set -euf
origin="$(dirname "$TARGET")/.$(basename "$TARGET").origin"
if [ -e "$TARGET" ]; then
  if [ -e "$origin" ] && [ "$(cat "$origin")" != "$REPOSITORY@$REVISION" ]; then
    echo "$TARGET has $(cat "$origin"), not $REPOSITORY@$REVISION: name the fleet differently, or move the directory" >&2
    exit 1
  fi
  echo "$TARGET is there already"
  exit 0
fi
part="$(dirname "$TARGET")/.$(basename "$TARGET").part"
# Other forms of the same tensors.
skip='consolidated* original/* onnx/* *.bin *.pt *.pth *.ckpt *.gguf *.h5 *.msgpack *.onnx'
export PYTHONPATH="$TOOLS" PATH="$TOOLS/bin:$PATH" HF_HOME="$TOOLS/home"
pip install --quiet --target "$TOOLS" 'huggingface_hub>=1,<3'
mkdir -p "$part"
python3 - "$part" $skip <<'END'
import fnmatch, os, pathlib, shutil, sys
from huggingface_hub import HfApi

part, skip = pathlib.Path(sys.argv[1]), sys.argv[2:]
found = HfApi().model_info(os.environ["REPOSITORY"], revision=os.environ["REVISION"], files_metadata=True)
sizes = {f.rfilename: f.size or 0 for f in found.siblings}
whole = sum(n for name, n in sizes.items() if not any(fnmatch.fnmatch(name, one) for one in skip))
missing = whole - sum(f.stat().st_size for f in part.rglob("*") if f.is_file())
free = shutil.disk_usage(part).free
print(f"{missing / 1e9:.1f} of {whole / 1e9:.1f} GB are missing, {free / 1e9:.1f} GB are free", flush=True)
if missing > free:
    sys.exit("the volume is too small; enlarge the claim, or delete versions that are not in use")
END
set --
for one in $skip; do set -- "$@" --exclude "$one"; done
hf download "$REPOSITORY" --revision "$REVISION" --local-dir "$part" "$@"
rm -rf "$part/.cache"
chmod -R a+rX "$part"
echo "$REPOSITORY@$REVISION" > "$origin"
mv "$part" "$TARGET"
echo "$TARGET is complete"
