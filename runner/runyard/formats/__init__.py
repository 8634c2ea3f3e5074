"""Message formats of providers: conversion of their messages to runyard's and back. The functions do no I/O."""
