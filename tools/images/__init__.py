"""The images of the Dockerfile, built with buildah on a base made by debootstrap, and tried out.

No container engine and no registry is needed: root, buildah and debootstrap are (Debian packages).
"""
